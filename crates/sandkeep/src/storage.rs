//! Where volumes live, and the layers that they stand on. A volume is the filesystem of one sandbox.

mod btrfs;
mod choose;
mod layer;
mod local;
mod offload;
mod root;
pub(crate) mod tree;

#[cfg(test)]
pub(crate) mod conformance;

use async_trait::async_trait;

use crate::sandbox::SandboxId;

pub use btrfs::{BtrfsOptions, BtrfsStorage};
pub use choose::{Opened, StorageChoice, begun, open};
pub use layer::{
    Base, InvalidLayerId, LayerDraft, LayerId, LayerKey, OPAQUE, OVERLAY_ATTRIBUTES, Whiteouts,
};
pub use local::LocalStorage;
pub use root::Root;
pub(crate) use root::is_whiteout;

/// What is true of this storage on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StorageCapabilities {
    /// `disk_mb` holds: writing past it fails with ENOSPC or EDQUOT inside.
    pub disk_quota: bool,
    /// Snapshot, rollback and fork.
    pub snapshots: bool,
    /// The filesystem can be id-mapped, so every sandbox has its own id range.
    pub id_mapped: bool,
}

/// How much a volume holds of its own: what is in the layers below it does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub used_bytes: u64,
    /// The quota, if one is set.
    pub limit_bytes: Option<u64>,
}

/// How full the place is where all volumes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHealth {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("{storage} storage cannot {what}")]
    Unsupported { storage: &'static str, what: &'static str },
    #[error("there is no volume of {id}")]
    NotFound { id: SandboxId },
    #[error("a volume of {id} exists already")]
    Exists { id: SandboxId },
    /// A base names a layer that is not kept here; nothing was made.
    #[error("there is no layer {layer}; import its template again")]
    LayerMissing { layer: LayerId },
    #[error("{count} layers are more than the {max} that a volume can stand on")]
    TooManyLayers { count: usize, max: usize },
    /// Removing it would break a volume; nothing was removed.
    #[error("layer {layer} is in use by {id}; destroy that first")]
    LayerInUse { layer: LayerKey, id: SandboxId },
    /// The storage cannot be used on this machine; `reason` says what is missing.
    #[error("{storage} storage is not usable here: {reason}")]
    Unusable { storage: &'static str, reason: String },
    #[error("{storage} storage failed to {what}")]
    Io {
        storage: &'static str,
        what: String,
        #[source]
        source: std::io::Error,
    },
}

/// # Behavior
/// - Every method is safe to call again after a crash half-way; `destroy` of what does not exist is
///   `Ok`, so that reconcile can simply repeat it.
/// - Volumes are named by sandbox id alone; a volume that `list` returns is complete or half-made,
///   never of another instance.
/// - A layer is listed when it is whole and on disk, and not before. It never changes. Which layers are
///   needed the storage does not know: the caller removes none that a template or a volume stands on,
///   and lets no removal overlap with a draft or a create above the same layers.
#[async_trait]
pub trait Storage: Send + Sync {
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> StorageCapabilities;

    /// Makes a volume. Above nothing it is a root directory owned by root, mode 0755, with nothing in
    /// it; above layers it shows all of them, an upper one over a lower one, and its root directory
    /// is that of the topmost. It takes no longer for more data below, and nothing that is written to
    /// it changes a layer. With `quota_bytes` the quota holds from the first byte, for what the
    /// volume itself gets. A layer that is not kept is [`StorageError::LayerMissing`]. A crash half-way
    /// leaves a volume that `list` shows and `destroy` removes, or nothing.
    async fn create(
        &self,
        id: &SandboxId,
        base: &Base,
        quota_bytes: Option<u64>,
    ) -> Result<Root, StorageError>;

    /// The root of an existing volume.
    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError>;

    /// Removes the volume and all it holds, but no layer. Idempotent. Nothing may be running on it.
    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError>;

    async fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError>;

    /// Marks the volume's present state under `name`.
    async fn snapshot(&self, id: &SandboxId, name: &str) -> Result<(), StorageError>;

    /// All volumes, half-made ones too.
    async fn list(&self) -> Result<Vec<SandboxId>, StorageError>;

    /// What the topmost of these layers, lowest first, is kept under. No IO: it need not be kept.
    /// Storages that keep differences answer the same whatever is below; storages that keep whole trees
    /// do not. `None` for no layers.
    fn layer_key(&self, layers: &[LayerId]) -> Option<LayerKey>;

    /// Begins a layer above others, which must be kept (else [`StorageError::LayerMissing`]). `None` if
    /// it is kept already. Two drafts of one layer do not disturb each other. A crash leaves
    /// something that no method shows and that opening the storage removes.
    async fn draft_layer(
        &self,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<Option<LayerDraft>, StorageError>;

    /// Makes a draft a layer, in one step and for good: when it returns, the layer survives a loss of
    /// power. `Ok` too if another draft of it was kept meanwhile, and then this one is removed. After
    /// an error, or a crash, there is the whole layer or none.
    async fn keep_layer(&self, draft: LayerDraft) -> Result<(), StorageError>;

    /// Removes a draft; returns when it is gone. Dropping one does the same without waiting.
    async fn abort_layer(&self, draft: LayerDraft) -> Result<(), StorageError> {
        offload::offload(self.name(), move || {
            draft.discard();
            Ok(())
        })
        .await
    }

    /// Makes what the volume of a stopped sandbox holds a layer above `below`, which are the layers that
    /// it was made above, in the same order. The volume stays as it is. `Ok` if the layer is kept
    /// already. Nothing may be running on the volume. A crash leaves what one leaves of a draft.
    async fn layer_from(
        &self,
        id: &SandboxId,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError>;

    /// All layers that are kept.
    async fn layers(&self) -> Result<Vec<LayerKey>, StorageError>;

    /// Removes a layer. `Ok` if it is not there. Where volumes would lose what they stand on, one that
    /// a volume was made above is [`StorageError::LayerInUse`]; where they have all that they need
    /// themselves, it just goes. Layers above it that are kept stay usable only on the latter.
    async fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError>;

    async fn pool_health(&self) -> Result<PoolHealth, StorageError>;

    /// Lets go of what only a running daemon needs (a mount, a loop device), if no volume is left.
    /// Layers do not hinder it: the next one that opens the storage finds them. Called on a clean
    /// shutdown.
    async fn close(&self) -> Result<(), StorageError>;
}
