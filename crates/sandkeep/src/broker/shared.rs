//! What all clones of a broker and all its tasks share: the parts, and who supervises what.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::exec::Execs;
use super::health::Pulse;
use super::registry::Registry;
use super::supervisor::{Request, Snapshot};
use super::{Parts, View};
use crate::error::Error;
use crate::home::{DataDir, Meta};
use crate::journal::JournalLimits;
use crate::limits;
use crate::runtime::{Lifetime, Runtime, Usable};
use crate::sandbox::{HostLimits, Owner, Principal, SandboxId, Spec};
use crate::storage::Storage;
use crate::telemetry::{NO_RUNTIME, ObservedStore, Telemetry};
use crate::template::Template;

pub(super) struct Shared {
    pub data: DataDir,
    pub registry: Registry,
    /// Beneath the registry.
    pub store: Arc<ObservedStore>,
    pub storage: Arc<dyn Storage>,
    pub runtimes: Vec<Arc<dyn Runtime>>,
    pub templates: Vec<Arc<dyn Template>>,
    pub lifetime: Lifetime,
    pub host: HostLimits,
    pub journal: JournalLimits,
    pub telemetry: Arc<Telemetry>,
    pub pulse: Pulse,
    /// Supervisors, drains, reconcile: all that ends with the broker.
    pub tasks: TaskTracker,
    pub closing: CancellationToken,
    /// Cancelled before `closing`: who watches an exec is told to come back later.
    pub detaching: CancellationToken,
    slots: RwLock<HashMap<SandboxId, Slot>>,
}

/// Whose a sandbox is. Who holds its slot is the only one to touch it.
enum Slot {
    /// Reconcile is looking at it.
    Claimed,
    Supervised(Arc<Handle>),
}

/// The way to a supervisor, and what can be known of its sandbox without asking it.
pub(super) struct Handle {
    pub id: SandboxId,
    pub owner: Owner,
    pub spec: Spec,
    pub created_at: jiff::Timestamp,
    pub inbox: mpsc::Sender<Request>,
    pub snapshot: watch::Receiver<Snapshot>,
    /// How many callers wait for a destroy: a stop before it need not be gentle.
    destroys: watch::Sender<usize>,
    pub execs: Arc<Execs>,
}

impl Handle {
    pub fn new(
        meta: &Meta,
        inbox: mpsc::Sender<Request>,
        snapshot: watch::Receiver<Snapshot>,
        destroys: watch::Sender<usize>,
        execs: Execs,
    ) -> Self {
        Self {
            id: meta.id.clone(),
            owner: meta.owner.clone(),
            spec: meta.spec.clone(),
            created_at: meta.created_at,
            inbox,
            snapshot,
            destroys,
            execs: Arc::new(execs),
        }
    }

    /// Says that somebody waits for a destroy, until it is dropped.
    pub fn wait_for_destroy(&self) -> WaitsForDestroy<'_> {
        self.destroys.send_modify(|waiting| *waiting += 1);
        WaitsForDestroy(self)
    }

    pub fn view(&self) -> View {
        let snapshot = self.snapshot.borrow();
        let status = &snapshot.status;
        View {
            id: self.id.clone(),
            state: status.state(),
            operation: status.operation(),
            reason: status.reason().map(ToString::to_string),
            runtime: self.spec.runtime().to_owned(),
            template: self.spec.template().to_owned(),
            owner: self.owner.clone(),
            labels: self.spec.labels().clone(),
            resources: self.spec.resources().clone(),
            privilege: self.spec.privilege(),
            created_at: self.created_at.to_string(),
        }
    }
}

pub(super) struct WaitsForDestroy<'a>(&'a Handle);

impl Drop for WaitsForDestroy<'_> {
    fn drop(&mut self) {
        self.0.destroys.send_modify(|waiting| *waiting -= 1);
    }
}

impl Shared {
    pub fn new(parts: Parts, host: HostLimits) -> Self {
        let telemetry = parts.telemetry;
        for runtime in &parts.runtimes {
            telemetry.verbs().announce(runtime.name());
        }
        let store = Arc::new(ObservedStore::new(parts.store, Arc::clone(&telemetry)));
        Self {
            data: parts.data,
            registry: Registry::new(Arc::clone(&store) as _),
            store,
            storage: parts.storage,
            runtimes: parts.runtimes,
            templates: parts.templates,
            lifetime: parts.lifetime,
            host,
            journal: parts.journal,
            telemetry,
            pulse: Pulse::default(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            detaching: CancellationToken::new(),
            slots: RwLock::default(),
        }
    }

    /// A lock is held for a look or one change of the map, never across an await, and nothing panics
    /// meanwhile; so a poisoned one is whole.
    fn slots(&self) -> RwLockReadGuard<'_, HashMap<SandboxId, Slot>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots_mut(&self) -> RwLockWriteGuard<'_, HashMap<SandboxId, Slot>> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox, if this principal may know of it.
    pub fn find(&self, who: &Principal, id: &SandboxId) -> Result<Arc<Handle>, Error> {
        match self.slots().get(id) {
            Some(Slot::Supervised(handle)) if who.may_see(&handle.owner) => Ok(Arc::clone(handle)),
            Some(Slot::Supervised(_) | Slot::Claimed) | None => {
                Err(Error::NotFound { id: id.clone() })
            }
        }
    }

    pub fn handles(&self) -> Vec<Arc<Handle>> {
        let supervised = |slot: &Slot| match slot {
            Slot::Supervised(handle) => Some(Arc::clone(handle)),
            Slot::Claimed => None,
        };
        self.slots().values().filter_map(supervised).collect()
    }

    /// Takes the slot of a new sandbox.
    pub fn admit(&self, handle: Arc<Handle>) -> Result<(), Error> {
        let mut slots = self.slots_mut();
        if slots.len() >= limits::SANDBOXES_MAX {
            let limit = limits::SANDBOXES_MAX;
            return Err(Error::LimitReached { what: "sandboxes", limit });
        }
        slots.insert(handle.id.clone(), Slot::Supervised(handle));
        Ok(())
    }

    /// Takes the slot of a sandbox that nobody supervises; `false` if somebody does.
    pub fn claim(&self, id: &SandboxId) -> bool {
        match self.slots_mut().entry(id.clone()) {
            Entry::Vacant(slot) => {
                slot.insert(Slot::Claimed);
                true
            }
            Entry::Occupied(mut slot) => match slot.get() {
                // Its supervisor ended without giving it back: it crashed.
                Slot::Supervised(handle) if handle.inbox.is_closed() => {
                    slot.insert(Slot::Claimed);
                    true
                }
                Slot::Supervised(_) | Slot::Claimed => false,
            },
        }
    }

    /// Puts a supervisor on a claimed sandbox.
    pub fn supervise(&self, handle: Arc<Handle>) {
        self.slots_mut().insert(handle.id.clone(), Slot::Supervised(handle));
    }

    /// Gives a slot back: there is no such sandbox any more, or it is not ours to supervise.
    pub fn release(&self, id: &SandboxId) {
        self.slots_mut().remove(id);
    }

    pub fn runtime(&self, name: &str) -> Result<&Arc<dyn Runtime>, Error> {
        let unknown = || Error::UnknownRuntime {
            name: name.to_owned(),
            known: self.runtimes.iter().map(|runtime| runtime.name().to_owned()).collect(),
        };
        self.runtimes.iter().find(|runtime| runtime.name() == name).ok_or_else(unknown)
    }

    /// What metrics call the runtime of this name, or the default one.
    pub fn runtime_label(&self, name: Option<&str>) -> &'static str {
        let named = match name {
            Some(name) => self.runtimes.iter().find(|runtime| runtime.name() == name),
            None => self.runtimes.first(),
        };
        named.map_or(NO_RUNTIME, |runtime| runtime.name())
    }

    /// The runtime of this name, if it can be used here.
    pub fn usable_runtime(&self, name: &str) -> Result<&Arc<dyn Runtime>, Error> {
        let runtime = self.runtime(name)?;
        match runtime.usable() {
            Usable::Yes => Ok(runtime),
            Usable::No { reason } => Err(Error::RuntimeUnusable { name: name.to_owned(), reason }),
        }
    }

    pub fn template(&self, name: &str) -> Result<&Arc<dyn Template>, Error> {
        let unknown = || Error::UnknownTemplate {
            name: name.to_owned(),
            known: self.templates.iter().map(|template| template.name().to_owned()).collect(),
        };
        self.templates.iter().find(|template| template.name() == name).ok_or_else(unknown)
    }

    /// Runs file work on a thread that may block. It is tracked, and holds the broker, so that the
    /// data directory stays locked for as long as anything writes to it.
    pub async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&DataDir) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = Arc::clone(self);
        let done = self.tasks.spawn_blocking(move || work(&shared.data)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|source| Error::DataDir {
            path: self.data.path().display().to_string(),
            source,
        })
    }
}
