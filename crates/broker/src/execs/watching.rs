//! Watching an exec: from any offset, any number of times.

use std::io;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::stdin::StdinTurn;
use super::{Execs, Running};
use crate::shared::Shared;
use sandkeep_core::ExecId;
use sandkeep_guestlink::{
    ExecEvent, Guest, GuestError,
    journal::{Follow, Journal, Watch},
};

/// Why a watcher gets no more events of an exec that is still running.
#[derive(Debug, thiserror::Error)]
pub enum Detached {
    #[error("the daemon shuts down")]
    ShuttingDown,
    #[error("the exec is not kept any more")]
    Removed,
    #[error("the exec's journal cannot be read")]
    Unreadable(#[source] io::Error),
}

/// A watcher of an exec.
pub struct ExecWatch {
    source: EventSource,
    detaching: CancellationToken,
    _leash: Option<DisconnectGuard>,
}

/// Where a watcher reads events.
enum EventSource {
    /// From the journal: it holds nothing that the exec or another watcher could wait for.
    Journal(Box<Watch>),
    /// From the exec itself, which waits for this watcher. For the client that started it and requested backpressure.
    Exec(Box<Running>),
}

impl ExecWatch {
    pub(super) fn new(shared: &Shared, watch: Watch, leash: Option<DisconnectGuard>) -> Self {
        let source = EventSource::Journal(Box::new(watch));
        Self { source, detaching: shared.detaching.clone(), _leash: leash }
    }

    pub(super) fn of_caller(shared: &Shared, running: Running) -> Self {
        let source = EventSource::Exec(Box::new(running));
        Self { source, detaching: shared.detaching.clone(), _leash: None }
    }

    pub fn id(&self) -> &ExecId {
        match &self.source {
            EventSource::Journal(watch) => watch.journal().id(),
            EventSource::Exec(running) => &running.id,
        }
    }

    /// The next event; `None` after the end or, without following, after the existing events. Cancel-safe.
    pub async fn next(&mut self, follow: Follow) -> Result<Option<ExecEvent>, Detached> {
        let event = async {
            match &mut self.source {
                EventSource::Journal(watch) => watch.next(follow).await,
                EventSource::Exec(running) => Ok(running.next().await),
            }
        };
        tokio::select! {
            biased;
            event = event => event.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Detached::Removed,
                _ => Detached::Unreadable(error),
            }),
            () = self.detaching.cancelled() => Err(Detached::ShuttingDown),
        }
    }
}

/// Ties an exec to its client's connection. Dropping it before the end applies the action that the client requested.
/// When a daemon shuts down, it closes connections itself; then nothing happens to the exec.
pub(super) struct DisconnectGuard {
    shared: Arc<Shared>,
    journal: Arc<Journal>,
    action: DisconnectAction,
}

/// What happens to an exec when its client disconnects.
#[derive(Clone)]
pub(super) enum DisconnectAction {
    Kill(Arc<dyn Guest>),
    CloseStdin(Arc<Execs>),
}

impl DisconnectGuard {
    pub fn new(shared: &Arc<Shared>, journal: Arc<Journal>, action: DisconnectAction) -> Self {
        Self { shared: Arc::clone(shared), journal, action }
    }
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        let leaves = self.shared.detaching.is_cancelled() || self.shared.closing.is_cancelled();
        if leaves || self.journal.end().is_some() || tokio::runtime::Handle::try_current().is_err()
        {
            return;
        }
        let (action, id) = (self.action.clone(), self.journal.id().clone());
        let closing = self.shared.closing.clone();
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = action.fulfil(&id) => {}
            }
        });
    }
}

impl DisconnectAction {
    async fn fulfil(&self, id: &ExecId) {
        match self {
            Self::Kill(guest) => kill(&**guest, id).await,
            // If the exec takes no more stdin, there is nothing to do.
            Self::CloseStdin(execs) => {
                if let Ok(turn) = StdinTurn::take(execs, id).await {
                    let _ = turn.close().await;
                }
            }
        }
    }
}

/// Retries while the guest is busy.
async fn kill(guest: &dyn Guest, id: &ExecId) {
    loop {
        match guest.cancel(id).await {
            Err(GuestError::TimedOut { .. }) => {}
            Err(error) => return debug!(exec = %id, %error, "an abandoned exec was not killed"),
            Ok(()) => return,
        }
    }
}
