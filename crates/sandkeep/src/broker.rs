//! The broker: admission, the registry, one supervisor per sandbox, reconcile.
//!
//! Every verb goes: admission → INTENT in the store → effect (storage, runtime, guest) → OUTCOME in
//! the store. A crash anywhere is seen from the intent and finished by reconcile.
//!
//! ```text
//!   Broker ──▶ shared      who supervises what; the parts
//!     │          │
//!     │          └─▶ supervisor (one task per sandbox) ──▶ verbs ──▶ registry, home, storage, runtime
//!     │                   │ publishes a snapshot
//!     └──▶ exec ◀─────────┘ the guest, without going through the task
//!
//!   reconcile: puts a supervisor on whatever has none
//! ```

mod admission;
mod exec;
mod health;
mod reconcile;
mod registry;
mod shared;
mod shells;
mod supervisor;
mod verbs;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;
use tokio_util::sync::DropGuard;
use tracing::warn;

use crate::error::Error;
use crate::home::{DataDir, Meta};
use crate::journal::JournalLimits;
use crate::limits;
use crate::runtime::{Capabilities, Labels, Lifetime, Runtime, Usable};
use crate::sandbox::{
    Operation, Owner, Principal, Privilege, Resources, SandboxId, SpecDraft, State, Status, Verb,
};
use crate::storage::Storage;
use crate::store::StateStore;
use crate::telemetry::Telemetry;
use crate::template::Template;
use shared::{Handle, Shared};
use supervisor::{Fate, LifecycleVerb, Request, Supervisor};

pub use exec::{ExecDraft, ExecPage, ExecView, ExecWatch, OnDisconnect, Running, StdinTurn, Told};
pub use health::{Health, Pool, PoolState, Readiness, SandboxCount};
pub use registry::registered;
pub use shells::{ShellDraft, ShellExecDraft, ShellView};

/// The parts a broker is made of. `main` chooses them; the broker knows only the contracts.
pub struct Parts {
    /// Locked before the other parts are made: they work in it.
    pub data: DataDir,
    pub store: Arc<dyn StateStore>,
    pub storage: Arc<dyn Storage>,
    /// The first is the default.
    pub runtimes: Vec<Arc<dyn Runtime>>,
    /// The first is the default.
    pub templates: Vec<Arc<dyn Template>>,
    pub lifetime: Lifetime,
    /// How much of what execs say is kept.
    pub journal: JournalLimits,
    pub telemetry: Arc<Telemetry>,
}

/// Cheap to clone; all clones are one broker. When the last goes, its tasks end as after
/// [`Broker::shutdown`].
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
    _close_on_drop: Arc<DropGuard>,
}

/// A sandbox as the API shows it. Environment values are never in it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = Sandbox)]
pub struct View {
    pub id: SandboxId,
    pub state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// Why it is `failed` or `stopped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub runtime: String,
    pub template: String,
    pub owner: Owner,
    pub labels: BTreeMap<String, String>,
    pub resources: Resources,
    pub privilege: Privilege,
    /// RFC 3339.
    pub created_at: String,
}

pub struct RuntimeView {
    pub name: &'static str,
    pub usable: Usable,
    pub capabilities: Capabilities,
    pub default: bool,
}

impl Broker {
    /// Reconciles what an earlier daemon left, and is ready.
    pub async fn open(parts: Parts) -> Result<Self, Error> {
        let host = admission::host_limits(parts.storage.as_ref()).await?;
        let shared = Arc::new(Shared::new(parts, host));
        let close_on_drop = Arc::new(shared.closing.clone().drop_guard());
        reconcile::once(&shared).await?;
        reconcile::report_orphans(&shared).await;
        shared.tasks.spawn(reconcile::at_intervals(Arc::clone(&shared)));
        Ok(Self { shared, _close_on_drop: close_on_drop })
    }

    /// Makes and launches a sandbox.
    pub async fn create(&self, who: &Principal, draft: SpecDraft) -> Result<View, Error> {
        let runtime = self.shared.runtime_label(draft.runtime.as_deref());
        let verbs = self.shared.telemetry.verbs();
        verbs.measure(Verb::Create, runtime, self.make(who, draft)).await
    }

    async fn make(&self, who: &Principal, draft: SpecDraft) -> Result<View, Error> {
        if self.shared.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        let owner = who.owner(None).map_err(|other| Error::InvalidField {
            field: "project",
            problem: other.to_string(),
        })?;
        let spec = admission::admit(&self.shared, draft)?;
        let runtime = Arc::clone(self.shared.runtime(spec.runtime())?);
        let data = &self.shared.data;
        let labels = Labels { instance: data.instance().as_str().to_owned(), owner };
        let meta = Meta::new(SandboxId::random(), labels, spec, data.boot_id().to_owned());
        admission::check_row(&meta)?;
        let (supervisor, handle) =
            Supervisor::new(&self.shared, runtime, meta, Status::creating(), None);
        self.shared.admit(Arc::clone(&handle))?;
        let (answer, created) = oneshot::channel();
        self.shared.tasks.spawn(begin(supervisor, answer));
        self.answer(&handle.id, created).await?;
        Ok(handle.view())
    }

    pub async fn get(&self, who: &Principal, id: &SandboxId) -> Result<View, Error> {
        Ok(self.shared.find(who, id)?.view())
    }

    /// All that this principal may see, the oldest first.
    pub async fn list(&self, who: &Principal) -> Result<Vec<View>, Error> {
        let mut handles = self.shared.handles();
        handles.retain(|handle| who.may_see(&handle.owner));
        handles.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(handles.iter().map(|handle| handle.view()).collect())
    }

    /// Launches a stopped or failed sandbox; nothing happens if it runs.
    pub async fn start(&self, who: &Principal, id: &SandboxId) -> Result<View, Error> {
        let handle = self.shared.find(who, id)?;
        self.ask(&handle, LifecycleVerb::Start).await?;
        Ok(handle.view())
    }

    /// Ends all processes of a sandbox; nothing happens if it is stopped.
    pub async fn stop(&self, who: &Principal, id: &SandboxId) -> Result<View, Error> {
        let handle = self.shared.find(who, id)?;
        self.ask(&handle, LifecycleVerb::Stop).await?;
        Ok(handle.view())
    }

    /// Removes a sandbox and all it held.
    pub async fn destroy(&self, who: &Principal, id: &SandboxId) -> Result<(), Error> {
        let handle = self.shared.find(who, id)?;
        self.ask(&handle, LifecycleVerb::Destroy).await
    }

    /// Starts a command in a running sandbox.
    pub async fn exec(
        &self,
        who: &Principal,
        id: &SandboxId,
        draft: ExecDraft,
    ) -> Result<Running, Error> {
        let handle = self.shared.find(who, id)?;
        let runtime = self.shared.runtime_label(Some(handle.spec.runtime()));
        let begun = exec::exec(&self.shared, &handle, draft);
        self.shared.telemetry.verbs().measure(Verb::Exec, runtime, begun).await
    }

    /// Sends everybody away who watches an exec: they can come back to the next daemon. The first step
    /// of a shutdown; execs that are waited for may still finish.
    pub fn detach_watchers(&self) {
        self.shared.detaching.cancel();
    }

    pub fn runtimes(&self) -> Vec<RuntimeView> {
        let view = |(place, runtime): (usize, &Arc<dyn Runtime>)| RuntimeView {
            name: runtime.name(),
            usable: runtime.usable(),
            capabilities: runtime.capabilities(),
            default: place == 0,
        };
        self.shared.runtimes.iter().enumerate().map(view).collect()
    }

    /// Whether this broker is fit to serve; it never waits longer than
    /// [`limits::HEALTH_ANSWER`].
    pub async fn health(&self) -> Health {
        health::health(&self.shared).await
    }

    /// All metrics as text.
    pub async fn metrics(&self) -> String {
        let reading = health::reading(&self.shared).await;
        self.shared.telemetry.render(&reading)
    }

    pub fn telemetry(&self) -> &Arc<Telemetry> {
        &self.shared.telemetry
    }

    /// Ends the supervisors; sandboxes go on running (unless their lifetime is the daemon's).
    /// A verb that was begun is finished first.
    pub async fn shutdown(&self) {
        match self.shared.lifetime {
            Lifetime::Detached => {}
            Lifetime::WithDaemon => self.destroy_all().await,
        }
        self.shared.detaching.cancel();
        self.shared.closing.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        if let Err(error) = self.shared.storage.close().await {
            warn!(%error, "cannot close the storage");
        }
    }

    async fn destroy_all(&self) {
        let all = self.shared.handles().into_iter().map(|handle| async move {
            if let Err(error) = self.ask(&handle, LifecycleVerb::Destroy).await {
                warn!(id = %handle.id, %error, "cannot destroy a sandbox; the next start will");
            }
        });
        futures_util::future::join_all(all).await;
    }

    /// Hands a verb to the sandbox's supervisor and waits for its end.
    async fn ask(&self, handle: &Handle, verb: LifecycleVerb) -> Result<(), Error> {
        let runtime = self.shared.runtime_label(Some(handle.spec.runtime()));
        let verbs = self.shared.telemetry.verbs();
        verbs.measure(verb.into(), runtime, self.hand_over(handle, verb)).await
    }

    async fn hand_over(&self, handle: &Handle, verb: LifecycleVerb) -> Result<(), Error> {
        if self.shared.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        let _waits = (verb == LifecycleVerb::Destroy).then(|| handle.wait_for_destroy());
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

    async fn answer(
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
        match self.shared.handles().iter().any(|handle| handle.id == id) {
            true => {
                let reason = "its supervisor ended; ask again in a minute".to_owned();
                Error::SandboxFailed { id, reason }
            }
            false => Error::NotFound { id },
        }
    }
}

/// The life of a new sandbox's supervisor.
async fn begin(mut supervisor: Supervisor, answer: oneshot::Sender<Result<(), Error>>) {
    let (fate, result) = supervisor.create().await;
    if fate == Fate::Gone {
        supervisor.leave();
    }
    // Nobody may be waiting any more.
    let _ = answer.send(result);
    match fate {
        Fate::Lives => {
            supervisor.sync_meta().await;
            supervisor.run().await;
        }
        Fate::Gone => {}
    }
}
