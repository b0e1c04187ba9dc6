//! Storage operations block (a system call may wait for a commit), so they run outside of the async threads: a storage
//! implements [`Blocking`], and [`Offloaded`] turns it into a [`Storage`].

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::{
    Base, DatasetSnapshot, ForeignTree, LayerDraft, LayerId, LayerKey, PoolHealth, Quota, Storage,
    StorageCapabilities, StorageError, Usage,
};
use sandkeep_core::{SandboxId, SnapshotId, limits};
use sandkeep_tree::{Root, RootKind, View};

/// The volume operations of a storage. The contract of each method is that of the same name in [`Storage`].
pub trait Blocking: BlockingLayers + BlockingSnapshots {
    const NAME: &str;

    fn capabilities(&self) -> StorageCapabilities;

    /// A quota is passed only if the capabilities include it; the same in [`fork`](BlockingSnapshots::fork).
    fn create(&self, id: &SandboxId, base: &Base, quota: &Quota) -> Result<Root, StorageError>;

    fn root_kind(&self, base: &Base) -> RootKind;

    fn root(&self, id: &SandboxId) -> Result<Root, StorageError>;

    fn destroy(&self, id: &SandboxId) -> Result<(), StorageError>;

    fn break_off(&self, _id: &SandboxId) {}

    fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError>;

    fn list(&self) -> io::Result<Vec<SandboxId>>;

    /// Refused, where there is no pool with datasets of others.
    fn foreign(self: &Arc<Self>, _snapshot: &DatasetSnapshot) -> Result<ForeignTree, StorageError> {
        let what = "open snapshots of datasets";
        Err(StorageError::Unsupported { storage: Self::NAME, what })
    }

    /// Nothing to do if the file system enforces all limits exactly.
    fn tend(&self, _id: Option<&SandboxId>) -> Result<(), StorageError> {
        Ok(())
    }

    /// Nothing, where what was removed is free at once.
    fn reclaim(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn pool_health(&self) -> Result<PoolHealth, StorageError>;

    fn close(&self, idle: &[SandboxId]) -> Result<(), StorageError>;
}

/// The same for snapshots. Never called if the capabilities have none.
pub trait BlockingSnapshots: Send + Sync + 'static {
    fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError>;

    fn snapshots(&self) -> io::Result<Vec<(SandboxId, SnapshotId)>>;

    fn snapshot_bytes(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<u64, StorageError>;

    fn delete_snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError>;

    fn rollback(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Root, StorageError>;

    fn fork(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        new: &SandboxId,
        quota: &Quota,
    ) -> Result<Root, StorageError>;

    /// Without a snapshot, it is called in any case.
    fn view(&self, id: &SandboxId, snapshot: Option<&SnapshotId>) -> Result<View, StorageError>;
}

/// The same for layers.
pub trait BlockingLayers: Send + Sync + 'static {
    fn layer_key(layers: &[LayerId]) -> Option<LayerKey>;

    fn draft_layer(
        self: &Arc<Self>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<Option<LayerDraft>, StorageError>;

    /// Gives a draft the name of its layer, with everything on disk, or fails with `AlreadyExists` if that name exists.
    fn publish(&self, draft: &LayerDraft) -> io::Result<()>;

    fn layer_from(
        self: &Arc<Self>,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError>;

    fn layers(&self) -> io::Result<Vec<LayerKey>>;

    fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError>;
}

/// Stores a draft as a layer.
pub(super) fn keep<S: Blocking>(storage: &S, draft: LayerDraft) -> Result<(), StorageError> {
    match storage.publish(&draft) {
        Ok(()) => draft.done(),
        // A concurrent draft of the same layer was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => draft.discard(),
        Err(source) => return Err(io_error::<S>(format!("keep {}", draft.key()), source)),
    }
    Ok(())
}

fn io_error<S: Blocking>(what: impl Into<String>, source: io::Error) -> StorageError {
    StorageError::of_io(S::NAME, what, source)
}

/// A storage whose operations run on threads that may block.
pub struct Offloaded<S> {
    pub(super) inner: Arc<S>,
    /// For operations that take as long as a tree is large: a tenant with many of them leaves threads for others.
    long: Arc<Semaphore>,
}

impl<S: Blocking> Offloaded<S> {
    pub(super) fn new(inner: S) -> Self {
        let long = Arc::new(Semaphore::new(limits::STORAGE_LONG_MAX));
        Self { inner: Arc::new(inner), long }
    }

    async fn offload<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<S>) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let inner = Arc::clone(&self.inner);
        offload(S::NAME, move || work(&inner)).await
    }

    /// The same for one volume.
    async fn on_volume<T: Send + 'static>(
        &self,
        id: &SandboxId,
        work: impl FnOnce(&Arc<S>, &SandboxId) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let id = id.clone();
        self.offload(move |inner| work(inner, &id)).await
    }

    /// The same for operations that take as long as the volume is large. It waits for its turn without a thread.
    async fn long_on_volume<T: Send + 'static>(
        &self,
        id: &SandboxId,
        work: impl FnOnce(&Arc<S>, &SandboxId) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let turn = Arc::clone(&self.long).acquire_owned().await;
        self.on_volume(id, move |inner, id| {
            let _turn = turn;
            work(inner, id)
        })
        .await
    }

    /// The same for one snapshot of it, if there can be any.
    async fn on_snapshot<T: Send + 'static>(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        work: impl FnOnce(&Arc<S>, &SandboxId, &SnapshotId) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        if !self.capabilities().snapshots {
            return Err(StorageError::Unsupported { storage: S::NAME, what: "make snapshots" });
        }
        let snapshot = snapshot.clone();
        self.long_on_volume(id, move |inner, id| work(inner, id, &snapshot)).await
    }

    fn check_quota(&self, quota: &Quota) -> Result<(), StorageError> {
        if quota.is_none() || self.capabilities().disk_quota {
            Ok(())
        } else {
            let what = "limit a volume's size";
            Err(StorageError::Unsupported { storage: S::NAME, what })
        }
    }
}

#[async_trait]
impl<S: Blocking> Storage for Offloaded<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn capabilities(&self) -> StorageCapabilities {
        self.inner.capabilities()
    }

    fn root_kind(&self, base: &Base) -> RootKind {
        self.inner.root_kind(base)
    }

    async fn create(
        &self,
        id: &SandboxId,
        base: &Base,
        quota: &Quota,
    ) -> Result<Root, StorageError> {
        self.check_quota(quota)?;
        let (base, quota) = (base.clone(), *quota);
        self.on_volume(id, move |inner, id| inner.create(id, &base, &quota)).await
    }

    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        self.on_volume(id, |inner, id| inner.root(id)).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        self.long_on_volume(id, |inner, id| inner.destroy(id)).await
    }

    fn break_off(&self, id: &SandboxId) {
        self.inner.break_off(id);
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError> {
        self.long_on_volume(id, |inner, id| inner.usage(id)).await
    }

    async fn foreign(&self, snapshot: &DatasetSnapshot) -> Result<ForeignTree, StorageError> {
        let snapshot = snapshot.clone();
        self.offload(move |inner| inner.foreign(&snapshot)).await
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StorageError> {
        let failed = |source| io_error::<S>("list volumes", source);
        self.offload(move |inner| inner.list().map_err(failed)).await
    }

    async fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        self.on_snapshot(id, snapshot, |inner, id, snapshot| inner.snapshot(id, snapshot)).await
    }

    async fn snapshots(&self) -> Result<Vec<(SandboxId, SnapshotId)>, StorageError> {
        let failed = |source| io_error::<S>("list snapshots", source);
        self.offload(move |inner| inner.snapshots().map_err(failed)).await
    }

    async fn snapshot_bytes(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<u64, StorageError> {
        let measure = |inner: &Arc<S>, id: &SandboxId, snapshot: &SnapshotId| {
            inner.snapshot_bytes(id, snapshot)
        };
        self.on_snapshot(id, snapshot, measure).await
    }

    async fn delete_snapshot(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<(), StorageError> {
        let delete = |inner: &Arc<S>, id: &SandboxId, snapshot: &SnapshotId| {
            inner.delete_snapshot(id, snapshot)
        };
        self.on_snapshot(id, snapshot, delete).await
    }

    async fn rollback(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Root, StorageError> {
        self.on_snapshot(id, snapshot, |inner, id, snapshot| inner.rollback(id, snapshot)).await
    }

    async fn fork(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        new: &SandboxId,
        quota: &Quota,
    ) -> Result<Root, StorageError> {
        self.check_quota(quota)?;
        let (new, quota) = (new.clone(), *quota);
        let fork = move |inner: &Arc<S>, id: &SandboxId, snapshot: &SnapshotId| {
            inner.fork(id, snapshot, &new, &quota)
        };
        self.on_snapshot(id, snapshot, fork).await
    }

    async fn view(
        &self,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
    ) -> Result<View, StorageError> {
        let snapshot = snapshot.cloned();
        self.on_volume(id, move |inner, id| inner.view(id, snapshot.as_ref())).await
    }

    fn layer_key(&self, layers: &[LayerId]) -> Option<LayerKey> {
        S::layer_key(layers)
    }

    async fn draft_layer(
        &self,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<Option<LayerDraft>, StorageError> {
        let (below, layer) = (below.to_vec(), layer.clone());
        self.offload(move |inner| inner.draft_layer(&below, &layer)).await
    }

    async fn keep_layer(&self, draft: LayerDraft) -> Result<(), StorageError> {
        self.offload(move |inner| keep(inner.as_ref(), draft)).await
    }

    async fn layer_from(
        &self,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError> {
        let (snapshot, below, layer) = (snapshot.cloned(), below.to_vec(), layer.clone());
        let make = move |inner: &Arc<S>, id: &SandboxId| {
            inner.layer_from(id, snapshot.as_ref(), &below, &layer)
        };
        self.long_on_volume(id, make).await
    }

    async fn layers(&self) -> Result<Vec<LayerKey>, StorageError> {
        let failed = |source| io_error::<S>("list layers", source);
        self.offload(move |inner| inner.layers().map_err(failed)).await
    }

    async fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError> {
        let layer = layer.clone();
        self.offload(move |inner| inner.remove_layer(&layer)).await
    }

    async fn tend(&self, id: Option<&SandboxId>) -> Result<(), StorageError> {
        let id = id.cloned();
        self.offload(move |inner| inner.tend(id.as_ref())).await
    }

    async fn reclaim(&self) -> Result<(), StorageError> {
        self.offload(|inner| inner.reclaim()).await
    }

    async fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        self.offload(|inner| inner.pool_health()).await
    }

    async fn close(&self, idle: &[SandboxId]) -> Result<(), StorageError> {
        let idle = idle.to_vec();
        self.offload(move |inner| inner.close(&idle)).await
    }
}

/// Runs `work` on a thread that may block. It continues to its end even if the caller stops waiting.
pub(super) async fn offload<T: Send + 'static>(
    storage: &'static str,
    work: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, StorageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(StorageError::Io {
                storage,
                what: "start work: the daemon is shutting down".to_owned(),
                source: std::io::Error::other(error),
            }),
        },
    }
}
