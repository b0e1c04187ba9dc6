//! Storage work blocks (a system call may wait for a commit), so it leaves the async threads: a storage is
//! written as [`Blocking`], and [`Offloaded`] is the [`Storage`] of it.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Base, LayerDraft, LayerId, LayerKey, PoolHealth, Root, Storage, StorageCapabilities,
    StorageError, Usage,
};
use crate::sandbox::SandboxId;

/// The work of a storage with its volumes. What a method has to keep is said at that of the same name in
/// [`Storage`].
pub trait Blocking: BlockingLayers {
    const NAME: &str;

    fn capabilities(&self) -> StorageCapabilities;

    /// A quota comes only where the capabilities have one.
    fn create(
        &self,
        id: &SandboxId,
        base: &Base,
        quota_bytes: Option<u64>,
    ) -> Result<Root, StorageError>;

    fn root(&self, id: &SandboxId) -> Result<Root, StorageError>;

    fn destroy(&self, id: &SandboxId) -> Result<(), StorageError>;

    fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError>;

    fn list(&self) -> io::Result<Vec<SandboxId>>;

    fn pool_health(&self) -> Result<PoolHealth, StorageError>;

    fn close(&self) -> Result<(), StorageError>;
}

/// The same with its layers.
pub trait BlockingLayers: Send + Sync + 'static {
    fn layer_key(layers: &[LayerId]) -> Option<LayerKey>;

    fn draft_layer(
        self: &Arc<Self>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<Option<LayerDraft>, StorageError>;

    /// Gives a draft the name of its layer, with everything on disk, or fails with `AlreadyExists` if there is
    /// one of that name.
    fn publish(&self, draft: &LayerDraft) -> io::Result<()>;

    fn layer_from(
        self: &Arc<Self>,
        id: &SandboxId,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError>;

    fn layers(&self) -> io::Result<Vec<LayerKey>>;

    fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError>;
}

/// Makes a draft a layer.
pub(super) fn keep<S: Blocking>(storage: &S, draft: LayerDraft) -> Result<(), StorageError> {
    match storage.publish(&draft) {
        Ok(()) => draft.done(),
        // Somebody else was faster with the same.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => draft.discard(),
        Err(source) => return Err(io_error::<S>(format!("keep {}", draft.key()), source)),
    }
    Ok(())
}

fn io_error<S: Blocking>(what: impl Into<String>, source: io::Error) -> StorageError {
    StorageError::Io { storage: S::NAME, what: what.into(), source }
}

/// A storage whose work is done where it may block.
pub struct Offloaded<S> {
    pub(super) inner: Arc<S>,
}

impl<S: Blocking> Offloaded<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner: Arc::new(inner) }
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
}

#[async_trait]
impl<S: Blocking> Storage for Offloaded<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn capabilities(&self) -> StorageCapabilities {
        self.inner.capabilities()
    }

    async fn create(
        &self,
        id: &SandboxId,
        base: &Base,
        quota_bytes: Option<u64>,
    ) -> Result<Root, StorageError> {
        if quota_bytes.is_some() && !self.capabilities().disk_quota {
            let what = "limit a volume's size";
            return Err(StorageError::Unsupported { storage: S::NAME, what });
        }
        let base = base.clone();
        self.on_volume(id, move |inner, id| inner.create(id, &base, quota_bytes)).await
    }

    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        self.on_volume(id, |inner, id| inner.root(id)).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        self.on_volume(id, |inner, id| inner.destroy(id)).await
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError> {
        self.on_volume(id, |inner, id| inner.usage(id)).await
    }

    async fn snapshot(&self, _id: &SandboxId, _name: &str) -> Result<(), StorageError> {
        Err(StorageError::Unsupported { storage: S::NAME, what: "make snapshots" })
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StorageError> {
        let failed = |source| io_error::<S>("list volumes", source);
        self.offload(move |inner| inner.list().map_err(failed)).await
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
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError> {
        let (below, layer) = (below.to_vec(), layer.clone());
        self.on_volume(id, move |inner, id| inner.layer_from(id, &below, &layer)).await
    }

    async fn layers(&self) -> Result<Vec<LayerKey>, StorageError> {
        let failed = |source| io_error::<S>("list layers", source);
        self.offload(move |inner| inner.layers().map_err(failed)).await
    }

    async fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError> {
        let layer = layer.clone();
        self.offload(move |inner| inner.remove_layer(&layer)).await
    }

    async fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        self.offload(|inner| inner.pool_health()).await
    }

    async fn close(&self) -> Result<(), StorageError> {
        self.offload(|inner| inner.close()).await
    }
}

/// Runs `work` where it may block. It goes on to its end even if the caller stops waiting.
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
