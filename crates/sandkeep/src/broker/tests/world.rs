//! All that is around a broker and outlives it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::flaky_store::FlakyStore;
use super::manual_clock::ManualClock;
use crate::broker::registry::Registry;
use crate::broker::{Broker, Clock, Filter, Parts, Policy, View};
use crate::error::Error;
use crate::home::DataDir;
use crate::journal::JournalLimits;
use crate::outgoing::Outgoing;
use crate::runtime::{Bind, Lifetime, MockRuntime, Runtime};
use crate::sandbox::{Principal, Privilege, SandboxId, SpecDraft, State, Status};
use crate::storage::{
    Base, LayerDraft, LayerId, LayerKey, PoolHealth, Root, Storage, StorageCapabilities,
    StorageError, Usage,
};
use crate::store::{MemoryStore, Prefix, StateStore};
use crate::telemetry::Telemetry;
use crate::template::source::registry::{Registries, Spool};
use crate::template::{Found, Template};

/// Far longer than anything here takes: a test that waits so long has failed.
pub(super) const LONG: Duration = Duration::from_secs(20);

pub(super) struct World {
    dir: tempfile::TempDir,
    pub store: Arc<MemoryStore>,
    pub failing_writes: Arc<AtomicUsize>,
    pub storage: Arc<Volumes>,
    pub runtime: MockRuntime,
    pub lifetime: Lifetime,
    pub journal: JournalLimits,
    pub policy: Policy,
    pub clock: Arc<ManualClock>,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = DataDir::open(&dir.path().join("data")).expect("a data directory");
        Self {
            store: Arc::new(MemoryStore::new()),
            failing_writes: Arc::default(),
            storage: Arc::new(Volumes::new(dir.path().join("volumes"))),
            runtime: MockRuntime::new(data.instance().as_str()),
            lifetime: Lifetime::Detached,
            journal: JournalLimits::default(),
            policy: Policy::default(),
            clock: Arc::new(ManualClock::new()),
            dir,
        }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn home(&self, id: &SandboxId) -> PathBuf {
        self.data().join("sandboxes").join(id.as_str())
    }

    pub fn parts(&self) -> Parts {
        let (entries, failing_writes) = (self.store.clone(), self.failing_writes.clone());
        Parts {
            data: DataDir::open(&self.data()).expect("nobody else uses it"),
            store: Arc::new(FlakyStore { entries, failing_writes }),
            storage: Arc::clone(&self.storage) as Arc<dyn Storage>,
            runtimes: vec![Arc::new(self.runtime.clone())],
            templates: vec![Arc::new(EmptyTemplate)],
            registries: Registries::new(
                Outgoing::default(),
                Arc::new(Spool::open(&self.dir.path().join("spool")).expect("a spool")),
                None,
            ),
            lifetime: self.lifetime,
            journal: self.journal,
            telemetry: Arc::new(Telemetry::new(|_| "failed")),
            policy: self.policy.clone(),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
        }
    }

    pub async fn open(&self) -> Broker {
        Broker::open(self.parts()).await.expect("a broker")
    }

    /// Ends a broker as a crash does for all that is outside of it, and opens the next one.
    pub async fn reopen(&self, broker: Broker) -> Broker {
        self.crash(broker).await;
        self.open().await
    }

    pub async fn crash(&self, broker: Broker) {
        let tasks = broker.shared.tasks.clone();
        drop(broker);
        tasks.close();
        tokio::time::timeout(LONG, tasks.wait()).await.expect("all tasks end with the broker");
    }

    /// The sandboxes that the registry knows.
    pub async fn rows(&self) -> Vec<SandboxId> {
        let registry = Registry::new(Arc::clone(&self.store) as _);
        registry.rows().await.expect("rows").into_iter().map(|(id, _)| id).collect()
    }

    /// What the registry says of each.
    pub async fn statuses(&self) -> Vec<Status> {
        let registry = Registry::new(Arc::clone(&self.store) as _);
        let rows = registry.rows().await.expect("rows").into_iter();
        rows.map(|(_, row)| row.record.expect("a readable row").status).collect()
    }

    /// Everything that is left of any sandbox, the names that lead to it included.
    pub async fn remains(&self) -> Vec<String> {
        let mut remains = self.sandbox_remains().await;
        let slots = self.store.list(&Prefix::new(["slots"])).await.expect("slots");
        remains.extend(slots.entries.iter().map(|entry| format!("slot {:?}", entry.key)));
        remains
    }

    /// Everything that is left of any sandbox itself, by name of the place.
    pub async fn sandbox_remains(&self) -> Vec<String> {
        let mut remains = Vec::new();
        remains.extend(self.rows().await.iter().map(|id| format!("row {id}")));
        let survey = crate::home::survey(&self.data()).expect("a look");
        remains.extend(survey.homes.iter().map(|home| format!("home {}", home.id)));
        let volumes = self.storage.list().await.expect("volumes");
        remains.extend(volumes.iter().map(|id| format!("volume {id}")));
        let found = self.runtime.list().await.expect("a list");
        remains.extend(found.iter().map(|found| format!("sandbox {}", found.id)));
        remains
    }
}

pub(super) fn me() -> Principal {
    Principal::local()
}

pub(super) async fn create(broker: &Broker) -> View {
    broker.create(&me(), SpecDraft::default()).await.expect("a sandbox")
}

/// All that I may see.
pub(super) async fn list(broker: &Broker) -> Vec<View> {
    let filter = Filter { limit: usize::MAX, ..Filter::default() };
    broker.list(&me(), &filter).await.expect("a list").items
}

/// Waits until the sandbox is in this state.
pub(super) async fn reaches(broker: &Broker, id: &SandboxId, state: State) -> View {
    let handle = broker.shared.find(&me(), id).expect("it is there");
    let mut snapshot = handle.snapshot.clone();
    let wait = snapshot.wait_for(|snapshot| snapshot.status.state() == state);
    let reached = tokio::time::timeout(LONG, wait).await;
    assert!(matches!(reached, Ok(Ok(_))), "{id} never became {state}: {:?}", handle.view());
    drop(reached);
    handle.view()
}

pub(super) fn is_not_found<T: std::fmt::Debug>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::NotFound { .. }))
}

/// A template with nothing in it.
struct EmptyTemplate;

#[async_trait]
impl Template for EmptyTemplate {
    fn name(&self) -> &str {
        "empty"
    }

    fn binds(&self) -> Arc<[Bind]> {
        Arc::from([])
    }

    fn has_program(&self, _: &str) -> Found {
        Found::No
    }

    fn default_privilege(&self) -> Privilege {
        Privilege::Root
    }

    async fn lay_out(&self, _root: &Root) -> Result<(), StorageError> {
        Ok(())
    }
}

/// Volumes that are names in a set, and a storage that fails when told to.
pub(super) struct Volumes {
    dir: PathBuf,
    ids: Mutex<BTreeSet<SandboxId>>,
    pub failing_creates: AtomicUsize,
    pub failing_destroys: AtomicUsize,
    /// How full it is; without one it does not answer.
    pub pool: Mutex<Option<PoolHealth>>,
}

impl Volumes {
    fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            ids: Mutex::default(),
            failing_creates: AtomicUsize::new(0),
            failing_destroys: AtomicUsize::new(0),
            pool: Mutex::new(Some(PoolHealth { total_bytes: 100, free_bytes: 60 })),
        }
    }

    fn fails(counter: &AtomicUsize) -> Result<(), StorageError> {
        let take = |left: usize| left.checked_sub(1);
        match counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(_) => Err(StorageError::Unusable { storage: "set", reason: "no luck".to_owned() }),
            Err(_) => Ok(()),
        }
    }

    fn ids(&self) -> std::sync::MutexGuard<'_, BTreeSet<SandboxId>> {
        self.ids.lock().expect("no test panics with it")
    }
}

const NO_LAYERS: StorageError = StorageError::Unsupported { storage: "set", what: "keep layers" };

#[async_trait]
impl Storage for Volumes {
    fn name(&self) -> &'static str {
        "set"
    }

    fn capabilities(&self) -> StorageCapabilities {
        StorageCapabilities { disk_quota: false, snapshots: false, id_mapped: false }
    }

    async fn create(
        &self,
        id: &SandboxId,
        _base: &Base,
        _quota: Option<u64>,
    ) -> Result<Root, StorageError> {
        Self::fails(&self.failing_creates)?;
        match self.ids().insert(id.clone()) {
            true => Ok(Root::Dir(self.dir.join(id.as_str()))),
            false => Err(StorageError::Exists { id: id.clone() }),
        }
    }

    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        match self.ids().contains(id) {
            true => Ok(Root::Dir(self.dir.join(id.as_str()))),
            false => Err(StorageError::NotFound { id: id.clone() }),
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        Self::fails(&self.failing_destroys)?;
        self.ids().remove(id);
        Ok(())
    }

    async fn usage(&self, _id: &SandboxId) -> Result<Usage, StorageError> {
        Ok(Usage { used_bytes: 0, limit_bytes: None })
    }

    async fn snapshot(&self, _id: &SandboxId, _name: &str) -> Result<(), StorageError> {
        Err(StorageError::Unsupported { storage: "set", what: "snapshot" })
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StorageError> {
        Ok(self.ids().iter().cloned().collect())
    }

    fn layer_key(&self, _layers: &[LayerId]) -> Option<LayerKey> {
        None
    }

    async fn draft_layer(
        &self,
        _below: &[LayerId],
        _layer: &LayerId,
    ) -> Result<Option<LayerDraft>, StorageError> {
        Err(NO_LAYERS)
    }

    async fn keep_layer(&self, _draft: LayerDraft) -> Result<(), StorageError> {
        Err(NO_LAYERS)
    }

    async fn abort_layer(&self, _draft: LayerDraft) -> Result<(), StorageError> {
        Err(NO_LAYERS)
    }

    async fn layer_from(
        &self,
        _id: &SandboxId,
        _below: &[LayerId],
        _layer: &LayerId,
    ) -> Result<(), StorageError> {
        Err(NO_LAYERS)
    }

    async fn layers(&self) -> Result<Vec<LayerKey>, StorageError> {
        Ok(Vec::new())
    }

    async fn remove_layer(&self, _layer: &LayerKey) -> Result<(), StorageError> {
        Err(NO_LAYERS)
    }

    async fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        let pool = *self.pool.lock().expect("no test panics with it");
        match pool {
            Some(pool) => Ok(pool),
            None => std::future::pending().await,
        }
    }

    async fn close(&self) -> Result<(), StorageError> {
        Ok(())
    }
}
