//! Requests that come as messages of a message server, and not over a connection. They take the same way as all others:
//! gate, rates, handlers, dialect. Only the sender is found in another way.
//!
//! ```text
//!   connection   its peer is the daemon's own user, or needs a credential
//!   message      needs a credential always, or the operator's configuration vouches for it ([`Vouched`])
//! ```
//!
//! Nobody can tell that the sender of a message has gone, so whoever answers it bounds the time that it takes.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Kit;
use super::connection_slots::{ConnectionSlot, ConnectionSlots};
use super::gate::{Connection, Peer, Vouched};
use super::origins::Reach;
use sandkeep_broker::Broker;
use sandkeep_core::Principal;

/// The doors for messages. Cheap to clone.
#[derive(Clone)]
pub struct Messages {
    kit: Kit,
    doors: TowerToHyperService<Router>,
    /// Messages have none of their own: they are counted where their senders are known.
    place: Arc<ConnectionSlot>,
}

impl Messages {
    pub fn new(kit: Kit, doors: Router) -> Self {
        let only = Arc::new(Semaphore::new(1));
        let permit = only.try_acquire_owned().expect("nobody else has this semaphore");
        let place = ConnectionSlots::new(None).enter(permit, None, &CancellationToken::new());
        Self { kit, doors: TowerToHyperService::new(doors), place: Arc::new(place) }
    }

    pub fn broker(&self) -> &Broker {
        &self.kit.broker
    }

    /// Answers a request that was a message. With `vouched` it needs no credential, and none that it has is looked at.
    /// The place of its sender is held by what is answered, extensions and all.
    pub async fn answer(&self, mut request: Request<Body>, vouched: Option<Principal>) -> Response {
        let connection = Connection {
            peer: Peer::Message,
            client: None,
            reach: Reach::Network,
            cut: CancellationToken::new(),
            over: CancellationToken::new(),
            standing: self.place.standing().clone(),
        };
        request.extensions_mut().insert(connection);
        if let Some(principal) = vouched {
            request.extensions_mut().insert(Vouched(principal));
        }
        match self.doors.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// Ends what would go on for ever.
    pub fn stop(&self) {
        self.kit.stop.cancel();
    }
}
