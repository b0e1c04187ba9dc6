//! Everything outside of a broker that outlives it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::flaky_store::FlakyStore;
use super::manual_clock::ManualClock;
use crate::error::Error;
use crate::records::registry::Registry;
use crate::telemetry::Telemetry;
use crate::{Broker, Clock, Filter, LocalDirectory, Parts, Policy, View};
use sandkeep_core::{Principal, Privilege, SandboxId, SnapshotId, SpecDraft, State, Status};
use sandkeep_guestlink::journal::JournalLimits;
use sandkeep_home::DataDir;
use sandkeep_image::{
    Contains, Template,
    source::registry::{Registries, Spool},
};
use sandkeep_outgoing::{Outgoing, Roots};
use sandkeep_runtime::{Lifetime, MockRuntime, Runtime};
use sandkeep_storage::{
    self, Amount, Base, LayerDraft, LayerId, LayerKey, PoolHealth, Quota, Storage,
    StorageCapabilities, StorageError, Usage,
};
use sandkeep_store::{MemoryStore, Prefix, StateStore};
use sandkeep_tree::{Bind, Root, RootKind};

/// Far longer than anything here takes: a test that waits this long has failed.
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
                Outgoing::new(vec!["127.0.0.1".parse().expect("a place")], Roots::default()),
                Arc::new(Spool::open(&self.dir.path().join("spool")).expect("a spool")),
                None,
            ),
            lifetime: self.lifetime,
            journal: self.journal,
            telemetry: Arc::new(Telemetry::default()),
            policy: self.policy.clone(),
            egress: crate::Egress::built_in(),
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

    /// Waits for the file work of a broker that crashed before there was a handle to it.
    pub async fn released(&self) {
        let free = async {
            while DataDir::open(&self.data()).is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, free).await.expect("file work ends");
    }

    fn registry(&self) -> Registry {
        let survey = sandkeep_home::survey(&self.data()).expect("a look");
        let instance = survey.instance.expect("an instance");
        let directory = LocalDirectory::new(Arc::clone(&self.store) as _, instance.as_str());
        Registry::new(Arc::new(directory))
    }

    /// The sandboxes that the registry knows to be here.
    pub async fn rows(&self) -> Vec<SandboxId> {
        let rows = self.registry().rows().await.expect("rows").into_iter();
        rows.filter(|(_, row)| !row.is_elsewhere()).map(|(id, _)| id).collect()
    }

    /// What the registry says of each.
    pub async fn statuses(&self) -> Vec<Status> {
        let rows = self.registry().rows().await.expect("rows").into_iter();
        rows.map(|(_, row)| row.record.expect("a readable row").status).collect()
    }

    /// Everything left of any sandbox, including the names that refer to it.
    pub async fn remains(&self) -> Vec<String> {
        let mut remains = self.sandbox_remains().await;
        for kind in ["slots", "names"] {
            let claims = self.store.list(&Prefix::new([kind])).await.expect("claims");
            remains.extend(claims.entries.iter().map(|entry| format!("{kind} {:?}", entry.key)));
        }
        remains
    }

    /// Everything that is left of any sandbox itself, by name of the place.
    pub async fn sandbox_remains(&self) -> Vec<String> {
        let mut remains = Vec::new();
        remains.extend(self.rows().await.iter().map(|id| format!("row {id}")));
        let survey = sandkeep_home::survey(&self.data()).expect("a look");
        remains.extend(survey.homes.iter().map(|home| format!("home {}", home.id)));
        let volumes = self.storage.list().await.expect("volumes");
        remains.extend(volumes.iter().map(|id| format!("volume {id}")));
        let snapshots = self.storage.snapshots().await.expect("snapshots");
        remains.extend(snapshots.iter().map(|(_, id)| format!("snapshot {id}")));
        for kind in ["snapshots", "forks"] {
            let rows = self.store.list(&Prefix::new([kind])).await.expect("rows");
            remains.extend(rows.entries.iter().map(|entry| format!("{kind} {:?}", entry.key)));
        }
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
    let mut published = handle.published.clone();
    let wait = published.wait_for(|published| published.status.state() == state);
    let reached = tokio::time::timeout(LONG, wait).await;
    assert!(matches!(reached, Ok(Ok(_))), "{id} never became {state}: {:?}", handle.view());
    drop(reached);
    handle.view()
}

pub(super) fn is_not_found<T: std::fmt::Debug>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::NotFound { .. }))
}

/// An empty template.
struct EmptyTemplate;

#[async_trait]
impl Template for EmptyTemplate {
    fn name(&self) -> &str {
        "empty"
    }

    fn binds(&self) -> Arc<[Bind]> {
        Arc::from([])
    }

    fn has_program(&self, _: &str) -> Contains {
        Contains::No
    }

    fn default_privilege(&self) -> Privilege {
        Privilege::Root
    }

    async fn lay_out(&self, _root: &Root, _id: &SandboxId) -> Result<(), StorageError> {
        Ok(())
    }
}

/// Volumes that hold one number each, and a storage that fails on demand.
pub(super) struct Volumes {
    dir: PathBuf,
    held: Mutex<Held>,
    pub failing_creates: AtomicUsize,
    pub failing_destroys: AtomicUsize,
    pub failing_snapshots: AtomicUsize,
    pub failing_rollbacks: AtomicUsize,
    /// What its roots are said to be.
    pub kind: Mutex<RootKind>,
    /// How full it is; without one it does not answer.
    pub pool: Mutex<Option<PoolHealth>>,
    /// How full it is once what was removed is free.
    pub reclaimed: Mutex<Option<PoolHealth>>,
}

#[derive(Default)]
struct Held {
    volumes: BTreeMap<SandboxId, u64>,
    snapshots: BTreeMap<(SandboxId, SnapshotId), u64>,
}

impl Volumes {
    fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            held: Mutex::default(),
            failing_creates: AtomicUsize::new(0),
            failing_destroys: AtomicUsize::new(0),
            failing_snapshots: AtomicUsize::new(0),
            failing_rollbacks: AtomicUsize::new(0),
            kind: Mutex::new(RootKind::Dir),
            pool: Mutex::new(Some(PoolHealth { total_bytes: 100, free_bytes: 60 })),
            reclaimed: Mutex::default(),
        }
    }

    fn fails(counter: &AtomicUsize) -> Result<(), StorageError> {
        let take = |left: usize| left.checked_sub(1);
        match counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(_) => Err(StorageError::Unusable { storage: "set", reason: "no luck".to_owned() }),
            Err(_) => Ok(()),
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().expect("no test panics with it")
    }

    /// Does what a command inside would have done.
    pub fn write(&self, id: &SandboxId, content: u64) {
        *self.held().volumes.get_mut(id).expect("a volume") = content;
    }

    pub fn read(&self, id: &SandboxId) -> u64 {
        *self.held().volumes.get(id).expect("a volume")
    }

    /// Removes a snapshot as nobody should.
    pub fn lose(&self, snapshot: &SnapshotId) {
        self.held().snapshots.retain(|(_, id), _| id != snapshot);
    }

    fn content(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<u64, StorageError> {
        let key = (id.clone(), snapshot.clone());
        let missing =
            || StorageError::SnapshotNotFound { id: key.0.clone(), snapshot: key.1.clone() };
        self.held().snapshots.get(&key).copied().ok_or_else(missing)
    }

    /// Its directory is there, for whoever looks into it.
    fn root_of(&self, id: &SandboxId) -> Root {
        let path = self.dir.join(id.as_str());
        std::fs::create_dir_all(&path).expect("a directory");
        Root::Dir(path)
    }
}

const NO_LAYERS: StorageError = StorageError::Unsupported { storage: "set", what: "keep layers" };

#[async_trait]
impl Storage for Volumes {
    fn name(&self) -> &'static str {
        "set"
    }

    fn capabilities(&self) -> StorageCapabilities {
        StorageCapabilities { disk_quota: false, snapshots: true, id_mapped: false }
    }

    async fn create(
        &self,
        id: &SandboxId,
        _base: &Base,
        _quota: &Quota,
    ) -> Result<Root, StorageError> {
        Self::fails(&self.failing_creates)?;
        match self.held().volumes.insert(id.clone(), 0) {
            None => Ok(self.root_of(id)),
            Some(_) => Err(StorageError::Exists { id: id.clone() }),
        }
    }

    fn root_kind(&self, _base: &Base) -> RootKind {
        *self.kind.lock().expect("nobody panics with it")
    }

    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        if self.held().volumes.contains_key(id) {
            Ok(self.root_of(id))
        } else {
            Err(StorageError::NotFound { id: id.clone() })
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        Self::fails(&self.failing_destroys)?;
        let mut held = self.held();
        held.volumes.remove(id);
        held.snapshots.retain(|(of, _), _| of != id);
        Ok(())
    }

    async fn usage(&self, _id: &SandboxId) -> Result<Usage, StorageError> {
        let nothing = Amount { used_bytes: 0, limit_bytes: None };
        Ok(Usage { tree: nothing, total: nothing })
    }

    async fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        Self::fails(&self.failing_snapshots)?;
        let mut held = self.held();
        let content = *held.volumes.get(id).ok_or(StorageError::NotFound { id: id.clone() })?;
        held.snapshots.insert((id.clone(), snapshot.clone()), content);
        Ok(())
    }

    async fn snapshots(&self) -> Result<Vec<(SandboxId, SnapshotId)>, StorageError> {
        Ok(self.held().snapshots.keys().cloned().collect())
    }

    async fn snapshot_bytes(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<u64, StorageError> {
        self.content(id, snapshot)
    }

    async fn delete_snapshot(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<(), StorageError> {
        self.held().snapshots.remove(&(id.clone(), snapshot.clone()));
        Ok(())
    }

    async fn rollback(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Root, StorageError> {
        Self::fails(&self.failing_rollbacks)?;
        let content = self.content(id, snapshot)?;
        self.held().volumes.insert(id.clone(), content);
        Ok(self.root_of(id))
    }

    async fn fork(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        new: &SandboxId,
        _quota: &Quota,
    ) -> Result<Root, StorageError> {
        Self::fails(&self.failing_creates)?;
        let content = self.content(id, snapshot)?;
        self.held().volumes.insert(new.clone(), content);
        Ok(self.root_of(new))
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StorageError> {
        Ok(self.held().volumes.keys().cloned().collect())
    }

    async fn view(
        &self,
        _: &SandboxId,
        _: Option<&SnapshotId>,
    ) -> Result<sandkeep_tree::View, StorageError> {
        Err(StorageError::Unsupported { storage: "set", what: "be read" })
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
        _snapshot: Option<&SnapshotId>,
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

    async fn tend(&self, _id: Option<&SandboxId>) -> Result<(), StorageError> {
        Ok(())
    }

    async fn reclaim(&self) -> Result<(), StorageError> {
        if let Some(freed) = self.reclaimed.lock().expect("no test panics with it").take() {
            *self.pool.lock().expect("no test panics with it") = Some(freed);
        }
        Ok(())
    }

    async fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        let pool = *self.pool.lock().expect("no test panics with it");
        match pool {
            Some(pool) => Ok(pool),
            None => std::future::pending().await,
        }
    }

    async fn close(&self, _idle: &[SandboxId]) -> Result<(), StorageError> {
        Ok(())
    }
}
