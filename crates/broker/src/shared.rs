//! State shared by all clones of a broker and all its tasks: the parts, and the map of supervisors.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio_util::sync::CancellationToken;

use super::Parts;
use super::clock::Clock;
use super::codebases::Codebases;
use super::flight::Flights;
use super::health::{Pulse, Service};
use super::policy::Policy;
use crate::error::Error;
use crate::images::Templates;
use crate::images::workspace::Uploads;
use crate::inside::tools::Calls;
use crate::lifecycle::activity::moment;
use crate::lifecycle::ensure::Verified;
use crate::lifecycle::handle::Handle;
use crate::lifecycle::reaper::Alarm;
use crate::lifecycle::snapshot::Records;
use crate::network::Networks;
use crate::policy::batteries::Batteries;
use crate::policy::host_disk;
use crate::policy::rate::Rates;
use crate::policy::refusals::Refusals;
use crate::policy::slots::Slots;
use crate::records::directory::{Directory, LocalDirectory};
use crate::records::events::EventLog;
use crate::records::names::NameIndex;
use crate::records::registry::Registry;
use crate::records::timeline::Timelines;
use crate::tasks::Tasks;
use crate::telemetry::{NO_RUNTIME, ObservedStore, Telemetry};
use crate::webhooks::Webhooks;
use sandkeep_audit::AuditLog;
use sandkeep_core::event::{EventKind, Subject};
use sandkeep_core::ledger::{Ledger, Shares};
use sandkeep_core::{
    HostLimits, Moment, Owner, Principal, Purpose, SandboxId, SandboxName, limits,
};
use sandkeep_guestlink::journal::JournalLimits;
use sandkeep_home::DataDir;
use sandkeep_image::{Template, source::registry::Registries};
use sandkeep_runtime::{Lifetime, Runtime, Usable};
use sandkeep_storage::Storage;

pub(super) struct Shared {
    pub data: DataDir,
    pub events: Arc<EventLog>,
    pub timelines: Timelines,
    pub refusals: Refusals,
    pub network: Networks,
    pub registry: Registry,
    /// The store below the registry.
    pub store: Arc<ObservedStore>,
    /// The directory of this and other nodes.
    pub directory: Arc<dyn Directory>,
    /// The records of snapshots.
    pub snapshots: Records,
    pub storage: Arc<dyn Storage>,
    pub runtimes: Vec<Arc<dyn Runtime>>,
    pub batteries: Batteries,
    /// The built-in templates.
    pub templates: Vec<Arc<dyn Template>>,
    /// The templates created here.
    pub images: Templates,
    /// Archives for workspaces.
    pub uploads: Uploads,
    /// The registries that images are pulled from.
    pub registries: Registries,
    pub lifetime: Lifetime,
    pub host: HostLimits,
    pub journal: JournalLimits,
    /// Data that the daemon stores for owners in its data directory.
    pub held: Arc<Ledger>,
    /// Memory of buffered answers.
    pub answers: Arc<Ledger>,
    pub telemetry: Arc<Telemetry>,
    pub pulse: Pulse,
    pub policy: Policy,
    pub clock: Arc<dyn Clock>,
    pub rates: Rates,
    /// Slots for file work on the host.
    pub file_work: Slots,
    /// Races under way.
    pub races: Slots,
    /// Who follows the events.
    pub followers: Slots,
    pub webhooks: Webhooks,
    pub codebases: Codebases,
    /// Who may have commands under way that came as messages.
    pub commands: Slots,
    pub alarm: Alarm,
    /// Creates with an idempotency key, and ensures, in progress.
    pub creates: Flights<()>,
    pub ensures: Flights<Option<Verified>>,
    /// Tool calls with an id.
    pub calls: Calls,
    /// Supervisors, drains, reconcile: everything that ends with the broker.
    pub tasks: Tasks,
    pub closing: CancellationToken,
    /// Canceled before `closing`: watchers of execs are asked to reconnect later.
    pub detaching: CancellationToken,
    /// Ends the connections into sandboxes: a while after `detaching`, and with `closing`.
    pub leaving_ports: CancellationToken,
    /// What the sandboxes in `places` are called.
    pub names: NameIndex,
    /// Where doors write down who did what, if somebody keeps that.
    pub audit: OnceLock<Arc<AuditLog>>,
    places: RwLock<Holders>,
    /// What is told of services outside.
    services: RwLock<Vec<Arc<dyn Service>>>,
}

const ANSWERS: Shares = Shares {
    organization_mb: Some(limits::ANSWERS_ORGANIZATION_MB),
    user_mb: Some(limits::ANSWERS_USER_MB),
};

/// Every sandbox of this node.
type Holders = HashMap<SandboxId, Holder>;

/// Who is responsible for a sandbox. Only the holder of its entry touches it.
enum Holder {
    /// Reconcile is checking it.
    Claimed,
    Supervised(Arc<Handle>),
}

impl Shared {
    pub fn new(parts: Parts, host: HostLimits, events: EventLog) -> Self {
        let telemetry = parts.telemetry;
        for runtime in &parts.runtimes {
            telemetry.verbs().announce(runtime.name());
        }
        let store = Arc::new(ObservedStore::new(parts.store, Arc::clone(&telemetry)));
        let instance = parts.data.instance().as_str();
        let directory: Arc<dyn Directory> =
            Arc::new(LocalDirectory::new(Arc::clone(&store) as _, instance));
        let closing = CancellationToken::new();
        let events = Arc::new(events);
        let network = Networks::new(parts.egress, &parts.data, &events, &parts.clock);
        Self {
            network,
            held: host_disk::ledger(parts.data.path(), &parts.policy),
            answers: Ledger::new("answers", ANSWERS, |_| Ok(())),
            batteries: Batteries::in_data_dir(parts.data.path()),
            timelines: Timelines::in_data_dir(parts.data.path()),
            refusals: Refusals::default(),
            events,
            data: parts.data,
            registry: Registry::new(Arc::clone(&directory)),
            directory,
            snapshots: Records::new(Arc::clone(&store) as _),
            images: Templates::new(Arc::clone(&store) as _, &parts.policy.quotas),
            uploads: Uploads::default(),
            store,
            storage: parts.storage,
            runtimes: parts.runtimes,
            templates: parts.templates,
            registries: parts.registries,
            lifetime: parts.lifetime,
            host,
            journal: parts.journal,
            telemetry,
            pulse: Pulse::default(),
            rates: Rates::new(&parts.policy.quotas),
            file_work: Slots::new(
                "diffs and reverts at once of one organization",
                limits::TREE_WORK_AT_ONCE_MAX,
            ),
            races: Slots::new("races at once of one organization", limits::RACES_MAX),
            followers: Slots::new("followers of events", limits::EVENT_FOLLOWERS_MAX),
            webhooks: Webhooks::default(),
            codebases: Codebases::default(),
            commands: Slots::new(
                "commands at once of one organization",
                limits::COMMANDS_AT_ONCE_MAX,
            ),
            policy: parts.policy,
            clock: parts.clock,
            alarm: Alarm::default(),
            creates: Flights::default(),
            ensures: Flights::default(),
            calls: Calls::default(),
            tasks: Tasks::default(),
            leaving_ports: closing.child_token(),
            closing,
            detaching: CancellationToken::new(),
            names: NameIndex::default(),
            audit: OnceLock::new(),
            places: RwLock::default(),
            services: RwLock::default(),
        }
    }

    /// What is told of services outside.
    pub fn services(&self) -> Vec<Arc<dyn Service>> {
        self.services.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn report_on(&self, service: Arc<dyn Service>) {
        self.services.write().unwrap_or_else(PoisonError::into_inner).push(service);
    }

    /// A lock is held for a look or one change of the map, never across an await, and nothing panics
    /// meanwhile; so a poisoned one is whole.
    fn places(&self) -> RwLockReadGuard<'_, Holders> {
        self.places.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn places_mut(&self) -> RwLockWriteGuard<'_, Holders> {
        self.places.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of this node, for records written on its behalf.
    pub fn node(&self) -> Option<String> {
        Some(self.directory.node().node.clone())
    }

    /// Whether a record with this node name belongs to another node. Records without a name are from versions with only
    /// one node.
    pub fn is_elsewhere(&self, node: Option<&str>) -> bool {
        node.is_some_and(|node| node != self.directory.node().node)
    }

    /// Appends an event to the log of this node. The outcome that it reports is already recorded.
    pub fn emit(&self, subject: &Subject, kind: &EventKind) {
        self.events.append(self.clock.wall(), subject, kind);
    }

    pub fn now(&self) -> Moment {
        moment(self.clock.as_ref(), self.data.boot_id())
    }

    /// The sandbox, if this principal may see it.
    pub fn find(&self, who: &Principal, id: &SandboxId) -> Result<Arc<Handle>, Error> {
        match self.supervised(id) {
            // A build sandbox is accessible only to its build.
            Some(handle)
                if handle.meta().spec.purpose() == Purpose::Use
                    && who.may_see(&handle.meta().owner) =>
            {
                Ok(handle)
            }
            Some(_) | None => Err(Error::NotFound { id: id.clone() }),
        }
    }

    /// The sandbox, whoever owns it, if it has a supervisor.
    pub fn supervised(&self, id: &SandboxId) -> Option<Arc<Handle>> {
        match self.places().get(id) {
            Some(Holder::Supervised(handle)) => Some(Arc::clone(handle)),
            Some(Holder::Claimed) | None => None,
        }
    }

    /// Whether a sandbox with this id exists or is being handled.
    pub fn knows(&self, id: &SandboxId) -> bool {
        self.places().contains_key(id)
    }

    pub fn handles(&self) -> Vec<Arc<Handle>> {
        let supervised = |place: &Holder| match place {
            Holder::Supervised(handle) => Some(Arc::clone(handle)),
            Holder::Claimed => None,
        };
        self.places().values().filter_map(supervised).collect()
    }

    /// Removes the journal of an exec that has ended, preferably of the same user. `false`: there is none. Blocks while
    /// a file is removed.
    pub fn give_way(&self, owner: &Owner, whose: &str) -> bool {
        let mut handles = self.handles();
        let of_user = |handle: &Handle| handle.meta().owner.user == owner.user;
        handles.retain(|handle| {
            let same = handle.meta().owner.organization == owner.organization;
            same && (whose != "user" || of_user(handle))
        });
        handles.sort_by_key(|handle| !of_user(handle));
        handles.iter().any(|handle| handle.execs.index.give_way())
    }

    /// Ends all connections of sandboxes; what was decided about them is written.
    pub async fn close_networks(&self) {
        self.handles().iter().for_each(|handle| handle.network.close());
        self.network.flush().await;
    }

    /// Adds new sandboxes to the map, if there is room for all of them.
    pub fn admit(&self, handles: &[Arc<Handle>]) -> Result<(), Error> {
        let mut places = self.places_mut();
        let limit = self.policy.max_sandboxes;
        if places.len() + handles.len() > limit {
            return Err(Error::LimitReached { what: "sandboxes", limit });
        }
        let taken = handles
            .iter()
            .map(|handle| (handle.id.clone(), Holder::Supervised(Arc::clone(handle))));
        places.extend(taken);
        drop(places);
        handles.iter().for_each(|handle| self.index_names(handle));
        Ok(())
    }

    /// Claims a sandbox that has no supervisor; `false` if it has one.
    pub fn claim(&self, id: &SandboxId) -> bool {
        match self.places_mut().entry(id.clone()) {
            Entry::Vacant(place) => {
                place.insert(Holder::Claimed);
                true
            }
            Entry::Occupied(mut place) => match place.get() {
                // Its supervisor ended without releasing it: it crashed.
                Holder::Supervised(handle) if handle.inbox.is_closed() => {
                    place.insert(Holder::Claimed);
                    true
                }
                Holder::Supervised(_) | Holder::Claimed => false,
            },
        }
    }

    /// Registers a supervisor for a claimed sandbox.
    pub fn supervise(&self, handle: Arc<Handle>) {
        self.index_names(&handle);
        self.places_mut().insert(handle.id.clone(), Holder::Supervised(handle));
    }

    fn index_names(&self, handle: &Handle) {
        self.names.add(&handle.id, &SandboxName::derived(&handle.id));
        if let Some(name) = &handle.meta().name {
            self.names.add(&handle.id, name);
        }
    }

    /// Gives a place back: there is no such sandbox any more, or it is not ours to supervise.
    pub fn release(&self, id: &SandboxId) {
        self.places_mut().remove(id);
        self.names.remove_all(id);
    }

    pub fn runtime(&self, name: &str) -> Result<&Arc<dyn Runtime>, Error> {
        let unknown = || Error::UnknownRuntime {
            name: name.to_owned(),
            known: self.runtimes.iter().map(|runtime| runtime.name().to_owned()).collect(),
        };
        self.runtimes.iter().find(|runtime| runtime.name() == name).ok_or_else(unknown)
    }

    /// The metrics label of the runtime with this name, or of the default one.
    pub fn runtime_label(&self, name: Option<&str>) -> &'static str {
        let named = match name {
            Some(name) => self.runtimes.iter().find(|runtime| runtime.name() == name),
            None => self.runtimes.first(),
        };
        named.map_or(NO_RUNTIME, |runtime| runtime.name())
    }

    /// Whether new sandboxes may be created or started with a runtime: it works here, and its isolation tests show no
    /// leak. Running ones are managed in any case.
    pub fn offers(&self, runtime: &dyn Runtime) -> Usable {
        match runtime.usable() {
            Usable::Yes => self.batteries.verdict(runtime.name()),
            unusable @ Usable::No { .. } => unusable,
        }
    }

    /// The runtime with this name, if it can be used here.
    pub fn usable_runtime(&self, name: &str) -> Result<&Arc<dyn Runtime>, Error> {
        let runtime = self.runtime(name)?;
        match self.offers(runtime.as_ref()) {
            Usable::Yes => Ok(runtime),
            Usable::No { reason } => Err(Error::RuntimeUnusable { name: name.to_owned(), reason }),
        }
    }

    /// Runs file work on a thread that may block. It is tracked, and holds the broker, so that the data directory stays
    /// locked while anything writes to it.
    pub fn blocking<T, W>(
        self: &Arc<Self>,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce(&DataDir) -> io::Result<T> + Send + 'static,
    {
        let shared = Arc::clone(self);
        let path = self.data.path().display().to_string();
        let done = self.tasks.spawn_blocking(move || work(&shared.data));
        async move {
            let done = done.await.unwrap_or_else(|error| Err(io::Error::other(error)));
            done.map_err(|source| Error::DataDir { path, source })
        }
    }
}
