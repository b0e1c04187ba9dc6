//! The way to a supervisor, and what can be known of its sandbox without asking it.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

use super::activity::Activity;
use super::snapshot::SnapshotIndex;
use super::supervisor::{LifecycleVerb, Request, Snapshot};
use crate::Broker;
use crate::error::Error;
use crate::execs::Execs;
use crate::execs::processes::Processes;
use crate::ports::Ports;
use crate::stats::Space;
use sandkeep_core::{Owner, SandboxId, SlotName, Spec, limits};
use sandkeep_home::Meta;

/// The way to a supervisor, and what can be known of its sandbox without asking it.
pub(crate) struct Handle {
    pub id: SandboxId,
    pub owner: Owner,
    pub slot: Option<SlotName>,
    pub spec: Spec,
    pub created_at: jiff::Timestamp,
    pub inbox: mpsc::Sender<Request>,
    pub snapshot: watch::Receiver<Snapshot>,
    /// How many callers wait for a destroy: a stop before it need not be gentle.
    destroys: watch::Sender<usize>,
    pub execs: Arc<Execs>,
    pub snapshots: Arc<SnapshotIndex>,
    pub activity: Arc<Activity>,
    /// How much its volume held when somebody last looked.
    pub space: Space,
    pub ports: Ports,
    pub processes: Processes,
}

impl Handle {
    pub fn new(
        meta: &Meta,
        inbox: mpsc::Sender<Request>,
        snapshot: watch::Receiver<Snapshot>,
        destroys: watch::Sender<usize>,
        execs: Execs,
        activity: Arc<Activity>,
    ) -> Self {
        Self {
            id: meta.id.clone(),
            owner: meta.owner.clone(),
            slot: meta.slot.clone(),
            spec: meta.spec.clone(),
            created_at: meta.created_at,
            inbox,
            snapshot,
            destroys,
            execs: Arc::new(execs),
            snapshots: Arc::default(),
            activity,
            space: Space::default(),
            ports: Ports::default(),
            processes: Processes::default(),
        }
    }

    /// Says that somebody waits for a destroy, until it is dropped.
    pub fn wait_for_destroy(&self) -> WaitsForDestroy<'_> {
        self.destroys.send_modify(|waiting| *waiting += 1);
        WaitsForDestroy(self)
    }
}

pub(crate) struct WaitsForDestroy<'a>(&'a Handle);

impl Drop for WaitsForDestroy<'_> {
    fn drop(&mut self) {
        self.0.destroys.send_modify(|waiting| *waiting -= 1);
    }
}

impl Broker {
    /// Hands a verb to the sandbox's supervisor and waits for its end.
    pub(crate) async fn ask(&self, handle: &Handle, verb: LifecycleVerb) -> Result<(), Error> {
        let runtime = self.shared.runtime_label(Some(handle.spec.runtime()));
        let verbs = self.shared.telemetry.verbs();
        match verb.named() {
            Some(name) => verbs.measure(name, runtime, self.hand_over(handle, verb)).await,
            None => self.hand_over(handle, verb).await,
        }
    }

    pub(crate) async fn hand_over(
        &self,
        handle: &Handle,
        verb: LifecycleVerb,
    ) -> Result<(), Error> {
        if self.shared.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        let destroys = verb == LifecycleVerb::Destroy;
        let _waits = destroys.then(|| handle.wait_for_destroy());
        let (answer, done) = oneshot::channel();
        match handle.inbox.try_send(Request { verb, answer }) {
            Ok(()) => self.answer(&handle.id, done).await,
            Err(TrySendError::Full(_)) => {
                let limit = limits::SUPERVISOR_QUEUE_MAX;
                Err(Error::LimitReached { what: "verbs that wait for one sandbox", limit })
            }
            Err(TrySendError::Closed(_)) => Err(self.unanswered(&handle.id)),
        }
    }

    pub(crate) async fn answer(
        &self,
        id: &SandboxId,
        answer: oneshot::Receiver<Result<(), Error>>,
    ) -> Result<(), Error> {
        answer.await.unwrap_or_else(|_| Err(self.unanswered(id)))
    }

    /// The supervisor ended without an answer: with the broker, with its sandbox, or by a fault of
    /// ours, which reconcile then mends.
    fn unanswered(&self, id: &SandboxId) -> Error {
        let id = id.clone();
        if self.shared.closing.is_cancelled() {
            return Error::ShuttingDown;
        }
        match self.shared.supervised(&id).is_some() {
            true => {
                let reason = "its supervisor ended; ask again in a minute".to_owned();
                Error::SandboxFailed { id, reason }
            }
            false => Error::NotFound { id },
        }
    }
}
