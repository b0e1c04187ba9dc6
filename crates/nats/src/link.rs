//! One connection to NATS.
//!
//! ```text
//!   connecting ──▶ connected ⇄ disconnected        until closed
//! ```
//!
//! Attempts go on for ever, further and further apart up to some seconds, with a random part, so that many daemons do not
//! come back at the same instant. A problem is logged when it begins and when it changes, not at every attempt.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Client, ClientError, Event, ServerError};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::options::Options;
use sandkeep_core::{limits, with_causes};

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("cannot read {path}", path = path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the server refused the credentials; check [nats] in the configuration")]
    Refused,
    #[error("cannot connect")]
    Connect(#[source] async_nats::ConnectError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// There was no connection yet.
    Connecting,
    Connected,
    /// There was one, and it is being opened again.
    Disconnected,
    Closed,
}

/// A link at one moment, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkReport {
    pub state: LinkState,
    /// How often the connection was opened.
    pub connects: u64,
    /// What the server or the network last said, while there is something wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A connection that lasts until it is closed. Cheap to clone; all clones are one connection.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    /// What it is for, in logs and in the server's list of connections.
    name: String,
    state: watch::Sender<LinkState>,
    client: watch::Sender<Option<Client>>,
    said: Mutex<Said>,
    closing: CancellationToken,
}

#[derive(Default)]
struct Said {
    connects: u64,
    problem: Option<String>,
}

impl Link {
    /// Begins to connect, in the background. `name` says what the connection is for.
    pub fn open(options: Options, name: impl Into<String>) -> Self {
        sandkeep_outgoing::crypto::provide();
        let shared = Arc::new(Shared {
            name: name.into(),
            state: watch::Sender::new(LinkState::Connecting),
            client: watch::Sender::new(None),
            said: Mutex::default(),
            closing: CancellationToken::new(),
        });
        tokio::spawn(connect(Arc::clone(&shared), options));
        Self { shared }
    }

    /// The client, when there has been a connection; it stays the same from then on and reconnects by itself.
    /// `None` once the link is closed. Cancel-safe.
    pub async fn client(&self) -> Option<Client> {
        let mut client = self.shared.client.subscribe();
        tokio::select! {
            () = self.shared.closing.cancelled() => None,
            found = client.wait_for(Option::is_some) => found.ok()?.clone(),
        }
    }

    /// Waits until there is a connection; `false` once the link is closed. Cancel-safe.
    pub async fn connected(&self) -> bool {
        let mut state = self.shared.state.subscribe();
        let reached = |state: &LinkState| matches!(state, LinkState::Connected | LinkState::Closed);
        let reached = state.wait_for(reached).await;
        reached.is_ok_and(|state| *state == LinkState::Connected)
    }

    /// Tells every change of the state. A connection that is lost and opened again between two looks counts as one
    /// change.
    pub fn watch(&self) -> watch::Receiver<LinkState> {
        self.shared.state.subscribe()
    }

    pub fn report(&self) -> LinkReport {
        let state = *self.shared.state.borrow();
        let said = self.shared.said();
        LinkReport { state, connects: said.connects, problem: said.problem.clone() }
    }

    /// Writes out what is under way and ends the connection. Waits for a bounded time.
    pub async fn close(&self) {
        self.shared.closing.cancel();
        let client = self.shared.client.send_replace(None);
        let is_connected = *self.shared.state.borrow() == LinkState::Connected;
        if let Some(client) = client.filter(|_| is_connected) {
            let drained = async {
                let _ = client.flush().await;
                let _ = client.drain().await;
            };
            let _ = tokio::time::timeout(limits::NATS_DRAIN, drained).await;
        }
        self.shared.state.send_replace(LinkState::Closed);
    }
}

impl Shared {
    /// Nothing panics while it is held.
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closing.is_cancelled()
    }

    fn connected(&self) {
        let connects = {
            let mut said = self.said();
            said.problem = None;
            said.connects += 1;
            said.connects
        };
        self.enter(LinkState::Connected);
        info!(connection = %self.name, connects, "connected to NATS");
    }

    fn disconnected(&self) {
        if !self.is_closed() {
            self.enter(LinkState::Disconnected);
            warn!(connection = %self.name, "NATS is gone; connecting again");
        }
    }

    /// A link that is closed stays so.
    fn enter(&self, state: LinkState) {
        self.state.send_if_modified(|current| {
            let changes = *current != LinkState::Closed && *current != state;
            if changes {
                *current = state;
            }
            changes
        });
    }

    fn trouble(&self, problem: String) {
        let is_new = {
            let mut said = self.said();
            let is_new = said.problem.as_ref() != Some(&problem);
            said.problem = Some(problem.clone());
            is_new
        };
        if is_new && !self.is_closed() {
            warn!(connection = %self.name, "NATS: {problem}");
        }
    }

    fn event(&self, event: Event) {
        match event {
            Event::Connected => self.connected(),
            Event::Disconnected => self.disconnected(),
            Event::ServerError(ServerError::AuthorizationViolation) => {
                self.trouble(LinkError::Refused.to_string());
            }
            // The library has no other word for it.
            Event::ClientError(ClientError::Other(problem))
                if problem == async_nats::ConnectErrorKind::AuthorizationViolation.to_string() =>
            {
                self.trouble(LinkError::Refused.to_string());
            }
            Event::ClientError(error) => self.trouble(error.to_string()),
            Event::ServerError(error) => self.trouble(error.to_string()),
            Event::SlowConsumer(_) => {
                self.trouble("messages arrive faster than they are read; some are lost".to_owned());
            }
            Event::LameDuckMode => info!(connection = %self.name, "the NATS server shuts down"),
            Event::Draining | Event::Closed => {}
        }
    }
}

/// Opens the connection for the first time. Later on the client reconnects by itself.
async fn connect(shared: Arc<Shared>, options: Options) {
    let mut attempts = 1;
    while !shared.is_closed() {
        match attempt(&shared, &options).await {
            Ok(client) => {
                shared.client.send_replace(Some(client).filter(|_| !shared.is_closed()));
                return;
            }
            Err(error) => shared.trouble(with_causes(&error)),
        }
        attempts += 1;
        tokio::select! {
            () = shared.closing.cancelled() => {}
            () = tokio::time::sleep(pause(attempts)) => {}
        }
    }
}

async fn attempt(shared: &Arc<Shared>, options: &Options) -> Result<Client, LinkError> {
    let listener = Arc::clone(shared);
    let prepared = options.prepare(&shared.name)?.reconnect_delay_callback(pause);
    let prepared = prepared.event_callback(move |event| {
        let listener = Arc::clone(&listener);
        async move { listener.event(event) }
    });
    prepared.connect(options.servers.as_slice()).await.map_err(|error| match error.kind() {
        async_nats::ConnectErrorKind::AuthorizationViolation => LinkError::Refused,
        _ => LinkError::Connect(error),
    })
}

/// Before the attempt of this number; none before the first.
fn pause(attempt: usize) -> Duration {
    if attempt < 2 {
        return Duration::ZERO;
    }
    let doubled = u32::try_from(attempt - 2).unwrap_or(u32::MAX).min(16);
    let longest = (limits::NATS_RETRY_FIRST * (1 << doubled)).min(limits::NATS_RETRY_MAX);
    longest.mul_f64(0.5 + 0.5 * random_part())
}

/// From 0 to 1. Without randomness everything works, only less spread.
fn random_part() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        assert_eq!(pause(1), Duration::ZERO);
        for attempt in 2..100 {
            let longest = pause(attempt);
            assert!(longest >= limits::NATS_RETRY_FIRST / 2 && longest <= limits::NATS_RETRY_MAX);
        }
        let differ: std::collections::BTreeSet<_> = (0..20).map(|_| pause(50)).collect();
        assert!(differ.len() > 1, "{differ:?}");
    }
}
