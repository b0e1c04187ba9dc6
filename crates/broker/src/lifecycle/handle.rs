//! The handle of a supervisor, and what is known of its sandbox without asking it.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{Span, debug};

use super::activity::Activity;
use super::request::{Answer, Command, Reply, Request};
use super::snapshot::SnapshotIndex;
use super::supervisor::Published;
use super::volume::Volume;
use crate::error::Error;
use crate::execs::Execs;
use crate::execs::processes::Processes;
use crate::network::NetworkRoom;
use crate::ports::Ports;
use crate::shared::Shared;
use crate::stats::Space;
use sandkeep_core::api::ServedBy;
use sandkeep_core::{SandboxId, Verb, limits};
use sandkeep_home::Meta;
use sandkeep_traces::step;

/// The handle of a supervisor, and what is known of its sandbox without asking it.
pub(crate) struct Handle {
    pub id: SandboxId,
    pub inbox: mpsc::Sender<Request>,
    pub published: watch::Receiver<Published>,
    /// How many callers wait for a destroy: an earlier stop then need not be graceful.
    pub(super) destroys: watch::Sender<usize>,
    pub execs: Arc<Execs>,
    pub snapshots: Arc<SnapshotIndex>,
    pub volume: Volume,
    pub activity: Arc<Activity>,
    /// The size of its volume when it was last measured.
    pub space: Space,
    pub ports: Ports,
    pub processes: Processes,
    pub network: Arc<NetworkRoom>,
    /// Why the daemon ends it, for the supervisor that sees it die.
    pub(super) ended_because: Mutex<Option<String>>,
    /// How the server of its codebase's rules serves, while it has one.
    pub(super) served: Mutex<Option<ServedBy>>,
}

impl Handle {
    /// The metadata as last published. Its spec, owner, slot and creation time never change.
    pub fn meta(&self) -> Arc<Meta> {
        Arc::clone(&self.published.borrow().meta)
    }

    /// The death that comes next has this reason.
    pub fn ends_because(&self, reason: String) {
        *self.ended_because.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    pub fn served(&self) -> Option<ServedBy> {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_served(&self, served: Option<ServedBy>) {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) = served;
    }

    /// Says that somebody waits for a destroy, until it is dropped.
    pub fn wait_for_destroy(&self) -> WaitsForDestroy<'_> {
        self.destroys.send_modify(|waiting| *waiting += 1);
        WaitsForDestroy(self)
    }

    /// Has the supervisor carry out a verb, and waits for its answer. The verb is measured.
    pub async fn ask<T>(
        &self,
        shared: &Shared,
        verb: Verb,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Error> {
        let runtime = shared.runtime_label(Some(self.meta().spec.runtime()));
        let answered = self.hand_over(shared, command);
        shared.telemetry.verbs().measure(verb, runtime, answered).await
    }

    /// The same for internal commands that no caller requested as a verb.
    pub async fn hand_over<T>(
        &self,
        shared: &Shared,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Error> {
        if shared.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        match self.enqueue(command) {
            Ok(answer) => self.answer(shared, answer).await,
            Err(TrySendError::Full(())) => {
                let limit = limits::SUPERVISOR_QUEUE_MAX;
                Err(Error::LimitReached { what: "verbs that wait for one sandbox", limit })
            }
            Err(TrySendError::Closed(())) => Err(self.unanswered(shared)),
        }
    }

    /// Puts a command in the supervisor's queue without waiting for the answer.
    pub fn enqueue<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<Answer<T>, TrySendError<()>> {
        let (reply, answer) = oneshot::channel();
        let waiting = step!("supervisor.wait");
        let request = Request { command: command(reply), span: Span::current(), waiting };
        debug!(id = %self.id, command = request.command.name(), "asking the supervisor");
        match self.inbox.try_send(request) {
            Ok(()) => Ok(answer),
            Err(TrySendError::Full(_)) => Err(TrySendError::Full(())),
            Err(TrySendError::Closed(_)) => Err(TrySendError::Closed(())),
        }
    }

    pub async fn answer<T>(&self, shared: &Shared, answer: Answer<T>) -> Result<T, Error> {
        answer.await.unwrap_or_else(|_| Err(self.unanswered(shared)))
    }

    /// The supervisor ended without an answer: with the broker, with its sandbox, or because of a bug, which reconcile
    /// then repairs.
    fn unanswered(&self, shared: &Shared) -> Error {
        let id = self.id.clone();
        if shared.closing.is_cancelled() {
            return Error::ShuttingDown;
        }
        if shared.supervised(&id).is_none() {
            return Error::NotFound { id };
        }
        let reason = "its supervisor ended; ask again in a minute".to_owned();
        Error::SandboxFailed { id, reason }
    }
}

pub(crate) struct WaitsForDestroy<'a>(&'a Handle);

impl Drop for WaitsForDestroy<'_> {
    fn drop(&mut self) {
        self.0.destroys.send_modify(|waiting| *waiting -= 1);
    }
}
