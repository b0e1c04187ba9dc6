//! What every front door needs and none should implement itself. The kit has no dialect: a door supplies its wording
//! ([`Dialect`]) and its handlers, and uses the kit for everything else. CONTRIBUTING.md shows how to add a door.
//!
//! ```text
//! connection → listen     TCP or a Unix socket, TLS or not; whose socket is it? (once per connection)
//! request    → correlation, observe   it gets its id, and is counted when it is answered
//!            → gate       who is it, and may they? (peer, Host, Origin, credential, scope)
//!            → reception  may its principal make one more request now? is there memory for it?
//!            → audit      space for its record, if it may change something
//!            → handler    the door's own; one call of the broker
//!            → audit      its record, before it is answered
//!            → dialect    every refusal, of the broker, the kit or the handler, in the door's words
//! ```

pub mod audit;
pub mod body;
mod connection_slots;
pub mod correlation;
pub mod credential;
mod dialect;
pub mod frames;
mod gate;
mod listen;
pub mod long_answer;
pub mod message;
mod observe;
mod origins;
pub mod paced;
pub mod path;
pub mod query;
mod reception;
mod refusal;
pub mod request_memory;
mod stream_lease;
pub mod tls;
mod unread;
pub mod who;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware;
use tokio_util::sync::CancellationToken;

use crate::auth::Auth;
use sandkeep_broker::{Broker, telemetry::RouteTable};

pub use dialect::{Dialect, effect_by_method, in_words, needed_by_method};
pub use gate::{By, Caller, Connection, Gate, Known, Pass, Peer, SignedBy, Vouched};
pub use listen::{Entrance, Listener, serve};
pub use origins::{Origins, is_loopback_host};
pub use refusal::Refusal;

/// State shared by all doors of one daemon.
#[derive(Clone)]
pub struct Kit {
    pub broker: Broker,
    pub gate: Arc<Gate>,
    /// Canceled when the daemon shuts down. Everything that would run forever listens to it.
    pub stop: CancellationToken,
    /// What operations are called in the audit log.
    pub operations: Arc<audit::Operations>,
}

impl Kit {
    pub fn new(broker: Broker, auth: Arc<Auth>, origins: Origins) -> Self {
        let gate = Arc::new(Gate { auth, origins });
        let operations = Arc::default();
        Self { broker, gate, stop: CancellationToken::new(), operations }
    }

    /// The routes of a door, all behind the gate: a new route is guarded by default.
    pub fn door(&self, dialect: impl Dialect, routes: Router<Broker>) -> Router {
        let desk = reception::Desk { kit: self.clone(), dialect: Box::new(dialect) };
        routes
            // `body` enforces its own limit, with a refusal in our format.
            .layer(DefaultBodyLimit::disable())
            .layer(middleware::from_fn_with_state(Arc::new(desk), reception::receive))
            .with_state(self.broker.clone())
    }

    /// The layers around all doors. `templates` are the route templates under which requests are counted.
    pub fn around<'a>(
        &self,
        doors: Router,
        templates: impl IntoIterator<Item = &'a str>,
    ) -> Router {
        let observer = observe::Observer {
            telemetry: Arc::clone(self.broker.telemetry()),
            routes: RouteTable::new(templates),
        };
        doors
            .layer(middleware::from_fn_with_state(Arc::new(observer), observe::observe))
            .layer(middleware::from_fn(correlation::correlate))
    }
}
