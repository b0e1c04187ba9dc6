//! The broker: admission, the registry, one supervisor per sandbox, reconcile.
//!
//! Every verb goes: admission → INTENT in the store → effect (storage, runtime, guest) → OUTCOME in the store. After a
//! crash at any point, reconcile sees the intent and finishes the verb. The doors call the broker, and so can any
//! program: `sandkeep::embed` assembles one, [`Broker::open`] takes [`Parts`] of your own.
//!
//! ```
//! use sandkeep_broker::{Broker, error::Error};
//! use sandkeep_core::{Principal, SpecDraft};
//!
//! async fn make_and_destroy(broker: &Broker) -> Result<(), Error> {
//!     let who = Principal::local();
//!     let sandbox = broker.create(&who, SpecDraft::default()).await?;
//!     broker.destroy(&who, &sandbox.id).await
//! }
//! ```
//!
//! ```text
//!   Broker ──▶ shared      the map of supervisors; the parts
//!     │          │
//!     │          └─▶ handle ──command──▶ supervisor (one task per sandbox) ──▶ registry, home, storage, runtime
//!     │                 ◀──typed reply──    │ publishes status, guest, metadata
//!     └──▶ exec ◀───────────────────────────┘ the guest, without going through the task
//!
//!   reconcile: starts a supervisor for every sandbox without one
//! ```

mod clock;
mod codebases;
pub mod error;
mod execs;
mod flight;
mod health;
mod images;
mod inside;
mod lifecycle;
mod network;
mod policy;
mod ports;
mod records;
mod shared;
mod stats;
mod tasks;
pub mod telemetry;
mod usage;
mod view;
mod webhooks;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio_util::sync::DropGuard;
use tracing::warn;

use crate::error::Error;
use crate::records::events::{EventLog, LogBounds};
use crate::telemetry::Telemetry;
use sandkeep_audit::AuditLog;
use sandkeep_core::event::EventSeq;
use sandkeep_core::ledger::Reservation;
use sandkeep_core::{ExecId, Owner, Principal, Purpose, SandboxId, Verb, limits};
use sandkeep_guestlink::journal::JournalLimits;
use sandkeep_home::{Battery, DataDir};
use sandkeep_image::{Template, source::registry::Registries};
use sandkeep_runtime::{Lifetime, Runtime, Usable};
use sandkeep_storage::Storage;
use sandkeep_store::StateStore;
use shared::Shared;

pub use clock::{Clock, SystemClock};
pub use codebases::{RecordedCodebase, recorded_codebases};
pub use execs::processes::{ProcessStatus, ProcessView};
pub use execs::shells::{ShellDraft, ShellExecDraft, ShellView};
pub use execs::{
    Detached, ExecDraft, ExecPage, ExecView, ExecWatch, OnDisconnect, Running, StdinTurn,
};
pub use health::{Health, Pool, PoolState, Readiness, SandboxCount, Service, ServiceHealth};
pub use images::workspace::UploadView;
pub use images::{
    Audience, BuildDraft, BuildStep, Cache, Import, ImportProgress, ImportStep, PathKind,
    TemplateConfig, TemplateDraft, TemplateSource, TemplateView, Told as ImportTold, Upload,
    recorded_build_caches,
};
pub use inside::files::{FileStream, FileUpload, FileWatch, Noticed};
pub use inside::toolbox::ToolboxInput;
pub use inside::tools::{
    Annotations, GitVerb, Listener, SnapshotAfter, Tier, Tool, ToolAnswer, ToolDraft, ToolEvent,
    ToolName, ToolResources, UnknownTool, catalogue, parameter,
};
pub use lifecycle::diff::{DiffBundle, DiffRequest, DiffText};
pub use lifecycle::ensure::Ensured;
pub use lifecycle::fork::ForkDraft;
pub use lifecycle::pause::InFlight;
pub use lifecycle::race::{Race, RaceDraft, RaceTold, RacerDraft};
pub use lifecycle::rollback::OnExecs;
pub use lifecycle::snapshot::{SnapshotView, recorded_snapshots};
pub use network::{Egress, KmsCommand, NetworkLogFeed, NetworkLogNext, NetworkLogPart};
pub use policy::abilities::{Abilities, IdRangeKind};
pub use policy::{Policy, PoolMarks, Profile, Quota, Quotas};
pub use ports::{PortPass, PortStream, PortToken, PortTokenProblem, PortView, Warrant};
pub use records::directory::{
    Directory, DirectoryError, FoundRequest, FoundRow, LocalDirectory, NewRow, Node, Phase,
    Placement, RequestPhase, RequestRecord, Rows, Share,
};
pub use records::events::{
    Consumer, Delivery, KeyChange, StartAt, Subscription, recorded as recorded_events,
};
pub use records::feed::{EventFeed, EventFilter, EventPage, Fed};
pub use records::registry::registered;
pub use records::timeline::{Happening, LogEntry};
pub use sandkeep_core::api::ExecLimits;
pub use sandkeep_egress::FixedHosts;
pub use stats::StatsView;
pub use view::{Cursor, Filter, InvalidCursor, Order, Page, View};

/// The parts of a broker. `main` chooses them; the broker knows only the contracts.
pub struct Parts {
    /// Locked before the other parts are created, because they use it.
    pub data: DataDir,
    pub store: Arc<dyn StateStore>,
    pub storage: Arc<dyn Storage>,
    /// The first is the default.
    pub runtimes: Vec<Arc<dyn Runtime>>,
    /// The built-in templates; the first is the default.
    pub templates: Vec<Arc<dyn Template>>,
    /// Used to pull images.
    pub registries: Registries,
    pub lifetime: Lifetime,
    /// How much exec output is kept.
    pub journal: JournalLimits,
    pub telemetry: Arc<Telemetry>,
    pub policy: Policy,
    /// How sandboxes reach other networks.
    pub egress: Egress,
    pub clock: Arc<dyn Clock>,
}

/// Cheap to clone; all clones are one broker. When the last clone is dropped, its tasks end as after
/// [`Broker::shutdown`].
#[derive(Clone)]
pub struct Broker {
    shared: Arc<Shared>,
    _close_on_drop: Arc<DropGuard>,
}

/// The place of one command among those that came as messages.
pub struct CommandPlace {
    _slot: policy::slots::Slot,
}

pub struct RuntimeView {
    pub name: &'static str,
    /// The last result of `doctor`'s isolation tests.
    pub battery: Option<Arc<Battery>>,
    pub usable: Usable,
    pub abilities: Abilities,
    pub default: bool,
}

impl Broker {
    /// Reconciles what an earlier daemon left, and returns a broker that is ready.
    pub async fn open(parts: Parts) -> Result<Self, Error> {
        let host = policy::admission::host_limits(parts.storage.as_ref()).await?;
        let events = open_events(&parts)?;
        let shared = Arc::new(Shared::new(parts, host, events));
        let close_on_drop = Arc::new(shared.closing.clone().drop_guard());
        shared.registry.adopt_earlier().await?;
        codebases::begin(&shared).await?;
        usage::begin(&shared).await?;
        lifecycle::reconcile::once(&shared).await?;
        shared.directory.sweep_claims().await?;
        lifecycle::fork::sweep(&shared).await?;
        lifecycle::snapshot::sweep_rows(&shared).await?;
        lifecycle::snapshot::sweep(&shared).await?;
        lifecycle::revert::finish_all(&shared).await?;
        lifecycle::race::sweep(&shared).await?;
        images::sweep(&shared).await?;
        lifecycle::reconcile::report_orphans(&shared).await;
        webhooks::begin(&shared).await?;
        health::begin(&shared).await;
        shared.tasks.spawn(lifecycle::reconcile::at_intervals(Arc::clone(&shared)));
        shared.tasks.spawn(lifecycle::reconcile::tend_limits(Arc::clone(&shared)));
        shared.tasks.spawn(lifecycle::reaper::run(Arc::clone(&shared)));
        shared.tasks.spawn(usage::run(Arc::clone(&shared)));
        shared.tasks.spawn(lifecycle::tcp_watch::run(Arc::clone(&shared)));
        shared.tasks.spawn(records::timeline::keep_up(Arc::clone(&shared)));
        Ok(Self { shared, _close_on_drop: close_on_drop })
    }

    pub async fn get(&self, who: &Principal, id: &SandboxId) -> Result<View, Error> {
        let handle = self.shared.find(who, id)?;
        self.shared.refresh_space(&handle).await;
        Ok(handle.view())
    }

    /// Checks that this principal has such a sandbox; looks only at the list.
    pub fn require(&self, who: &Principal, id: &SandboxId) -> Result<(), Error> {
        self.shared.find(who, id).map(drop)
    }

    /// The sandboxes that this principal may see and that match the filter, in the filter's order.
    pub async fn list(&self, who: &Principal, filter: &Filter) -> Result<Page, Error> {
        let mut handles = self.shared.handles();
        handles.retain(|handle| handle.meta().spec.purpose() == Purpose::Use);
        filter.page(who, handles)
    }

    /// The current resource usage of a sandbox.
    pub async fn stats(&self, who: &Principal, id: &SandboxId) -> Result<StatsView, Error> {
        let handle = self.shared.find(who, id)?;
        self.shared.stats(&handle).await
    }

    /// Applies the rate limit of this principal to one more request.
    pub fn admit_request(&self, who: &Principal) -> Result<(), Error> {
        if self.shared.rates.are_limited() {
            self.shared.rates.admit(who, self.shared.clock.uptime())
        } else {
            Ok(())
        }
    }

    /// Whether this principal may have one more command under way that came as a message; until what is answered
    /// goes, it is.
    pub fn admit_command(&self, who: &Principal) -> Result<CommandPlace, Error> {
        Ok(CommandPlace { _slot: self.shared.commands.take(&who.organization)? })
    }

    /// Memory that one more request of this principal may take.
    pub fn request_memory(&self, who: &Principal) -> Reservation {
        let Principal { organization, user, .. } = who;
        let (organization, user) = (organization.clone(), user.clone());
        self.shared.requests.open(&Owner { organization, user, project: String::new() })
    }

    /// The events of this node after this one, or after all that there are.
    pub fn events(&self, after: Option<EventSeq>) -> Subscription {
        self.shared.events.subscribe(after)
    }

    /// From now on, doors write down in this log who did what. Only the first one counts.
    pub fn keep_audit(&self, log: Arc<AuditLog>) {
        let _ = self.shared.audit.set(log);
    }

    /// Where doors write down who did what; `None` if nobody keeps that.
    pub fn audit(&self) -> Option<&Arc<AuditLog>> {
        self.shared.audit.get()
    }

    /// Starts a command in a running sandbox.
    pub async fn exec(
        &self,
        who: &Principal,
        id: &SandboxId,
        draft: ExecDraft,
    ) -> Result<Running, Error> {
        let handle = self.shared.find(who, id)?;
        let runtime = self.shared.runtime_label(Some(handle.meta().spec.runtime()));
        let begun = execs::exec(&self.shared, &handle, draft, ExecId::random());
        self.shared.telemetry.verbs().measure(Verb::Exec, runtime, begun).await
    }

    /// Detaches all watchers of execs and, soon after, all connections to ports: they can reconnect to the next daemon.
    /// The first step of a shutdown; execs that are waited for may still finish.
    pub fn detach_watchers(&self) {
        self.shared.detaching.cancel();
        let shared = Arc::clone(&self.shared);
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = shared.closing.cancelled() => {}
                () = tokio::time::sleep(limits::PORT_DRAIN) => shared.leaving_ports.cancel(),
            }
        });
    }

    pub fn has_profile(&self, name: &str) -> bool {
        self.shared.policy.profiles.contains_key(name)
    }

    pub fn runtimes(&self) -> Vec<RuntimeView> {
        let usual = policy::admission::usual_runtime(&self.shared);
        let view = |runtime: &Arc<dyn Runtime>| RuntimeView {
            name: runtime.name(),
            battery: self.shared.batteries.last(runtime.name()),
            usable: self.shared.offers(runtime.as_ref()),
            abilities: policy::abilities::of(&self.shared, runtime.as_ref()),
            default: runtime.name() == usual,
        };
        self.shared.runtimes.iter().map(view).collect()
    }

    /// Whether this broker is fit to serve; never waits longer than [`limits::HEALTH_ANSWER`].
    pub async fn health(&self) -> Health {
        health::health(&self.shared).await
    }

    /// All metrics as text.
    pub async fn metrics(&self) -> String {
        let reading = health::reading(&self.shared).await;
        self.shared.telemetry.render(&reading)
    }

    /// Has the health check tell of a service outside from now on.
    pub fn report_on(&self, service: Arc<dyn Service>) {
        self.shared.report_on(service);
    }

    pub fn telemetry(&self) -> &Arc<Telemetry> {
        &self.shared.telemetry
    }

    /// Removes volumes that belong to no known sandbox. Must not run while volumes are being created; only a broker
    /// that forgets its sandboxes when it ends needs it.
    pub async fn remove_orphans(&self) -> Result<(), Error> {
        lifecycle::reconcile::remove_orphans(&self.shared).await
    }

    /// Ends the supervisors. Sandboxes keep running (unless their lifetime is the daemon's). A verb in progress is
    /// finished first.
    pub async fn shutdown(&self) {
        self.stop_builds().await;
        match self.shared.lifetime {
            Lifetime::Detached => self.note_activities().await,
            Lifetime::WithDaemon => self.destroy_all().await,
        }
        self.shared.detaching.cancel();
        self.shared.closing.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        self.shared.close_networks().await;
        if let Err(error) = self.close_storage().await {
            warn!(%error, "cannot close the storage");
        }
    }

    /// Builds have ended, so nothing uses their caches.
    async fn close_storage(&self) -> Result<(), Error> {
        let caches = images::cache_volumes(&self.shared).await?;
        Ok(self.shared.storage.close(&caches).await?)
    }
}

fn open_events(parts: &Parts) -> Result<EventLog, Error> {
    let (data, lost) = (&parts.data, parts.telemetry.events_lost());
    EventLog::open(data.path(), data.boot_id(), LogBounds::default(), lost)
        .map_err(|source| Error::DataDir { path: data.path().display().to_string(), source })
}
