//! Where volumes live, the layers that they stand on, and the snapshots that are made of them. A volume is the
//! filesystem of one sandbox. [`Storage`] is the contract; [`open`] chooses among the three that there are.
//!
//! ```no_run
//! use sandkeep_core::SandboxId;
//! use sandkeep_storage::{Base, LocalStorage, Quota, Storage as _, StorageError};
//!
//! # async fn example() -> Result<(), StorageError> {
//! let storage = LocalStorage::open("/var/lib/example".as_ref())?;
//! let id = SandboxId::random();
//! let root = storage.create(&id, &Base::Empty, &Quota::NONE).await?;
//! println!("{id} has its files in {}", root.own_dir().display());
//! storage.destroy(&id).await
//! # }
//! ```

mod btrfs;
mod choose;
mod layer;
mod local;
mod offload;
mod quota;
mod zfs;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

use std::os::fd::AsFd;

use async_trait::async_trait;
use rustix::fs::fstatvfs;
use sandkeep_tree::{Root, RootKind, View};

use sandkeep_core::{SandboxId, SnapshotId};

pub use btrfs::{BtrfsOptions, BtrfsStorage};
pub use choose::{NoStorage, Opened, StorageChoice, begun, open};
pub use layer::{Base, InvalidLayerId, LayerDraft, LayerId, LayerKey, Whiteouts};
pub use local::LocalStorage;
pub use quota::{Amount, Limit, Quota, Usage};
pub use zfs::{Dataset, Holding, InvalidDataset, Whose, ZfsStorage};

/// What is true of this storage on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StorageCapabilities {
    /// `disk_mb` and `disk_total_mb` hold: writing past one fails with ENOSPC or EDQUOT inside.
    pub disk_quota: bool,
    /// Snapshot, rollback and fork.
    pub snapshots: bool,
    /// The filesystem can be id-mapped, so every sandbox has its own id range. Else a daemon that is root gives
    /// all of them one that they share, and the files hold ids of that.
    pub id_mapped: bool,
}

/// How full the place is where all volumes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHealth {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

impl PoolHealth {
    /// Of the filesystem that a file is on.
    fn of(file: impl AsFd) -> rustix::io::Result<Self> {
        let stat = fstatvfs(file)?;
        Ok(Self {
            total_bytes: stat.f_blocks * stat.f_frsize,
            free_bytes: stat.f_bavail * stat.f_frsize,
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("{storage} storage cannot {what}")]
    Unsupported { storage: &'static str, what: &'static str },
    #[error("there is no volume of {id}")]
    NotFound { id: SandboxId },
    #[error("a volume of {id} exists already")]
    Exists { id: SandboxId },
    #[error("there is no snapshot {snapshot} of {id}")]
    SnapshotNotFound { id: SandboxId, snapshot: SnapshotId },
    #[error("a snapshot {snapshot} of {id} exists already")]
    SnapshotExists { id: SandboxId, snapshot: SnapshotId },
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
    /// The pool, or what the volume may hold with its snapshots, has no room for it. Nothing was made.
    #[error("{storage} storage has no space left to {what}; remove snapshots or sandboxes")]
    Full {
        storage: &'static str,
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{storage} storage failed to {what}")]
    Io {
        storage: &'static str,
        what: String,
        #[source]
        source: std::io::Error,
    },
}

impl StorageError {
    /// Whether there was no room, for whomever. A quota that is used up is something else.
    pub fn is_for_want_of_room(&self) -> bool {
        match self {
            Self::Full { source, .. } | Self::Io { source, .. } => {
                source.kind() == std::io::ErrorKind::StorageFull
            }
            _ => false,
        }
    }

    /// A system call failed.
    pub(crate) fn of_io(
        storage: &'static str,
        what: impl Into<String>,
        source: std::io::Error,
    ) -> Self {
        let what = what.into();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::Full { storage, what, source }
            }
            _ => Self::Io { storage, what, source },
        }
    }
}

/// # Behavior
/// - Every method is safe to call again after a crash half-way; `destroy` of what does not exist is
///   `Ok`, so that reconcile can simply repeat it.
/// - Volumes are named by sandbox id alone; a volume that `list` returns is complete or half-made,
///   never of another instance.
/// - A snapshot belongs to a volume and goes with it. It is listed when it is whole and on disk, and not before.
///   It never changes: not by what is written to the volume or to a fork, not by a rollback to it or to
///   another, not when another snapshot goes.
/// - The caller lets no two methods that change a volume or its snapshots overlap. Those of different volumes may.
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
    /// it changes a layer. The quota holds from the first byte, for what the volume itself gets.
    /// A layer that is not kept is [`StorageError::LayerMissing`]. A crash half-way leaves a volume that
    /// `list` shows and `destroy` removes, or nothing.
    async fn create(
        &self,
        id: &SandboxId,
        base: &Base,
        quota: &Quota,
    ) -> Result<Root, StorageError>;

    /// The kind of root that [`create`](Self::create) gives a volume above `base`. No IO: whoever wants the volume asks
    /// first whether it can be used.
    fn root_kind(&self, base: &Base) -> RootKind;

    /// The root of an existing volume.
    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError>;

    /// Removes the volume and all it holds, and its snapshots, but no layer and no fork. Idempotent. Nothing
    /// may be running on it. A crash half-way leaves something that `list` or `snapshots` shows, or that
    /// opening the storage removes.
    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError>;

    async fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError>;

    /// All volumes, half-made ones too.
    async fn list(&self) -> Result<Vec<SandboxId>, StorageError>;

    /// Marks what the volume holds now, under a name that was never used. Nothing writes to the volume meanwhile:
    /// the caller has stopped or frozen the sandbox. What was written, synced or not, is in it, and on disk
    /// when this returns; a caller that freezes for it writes back first (`syncfs` of the root), so that the
    /// sandbox does not stand still for longer than it must. After an error or a crash there is the whole
    /// snapshot or none: then what is left no method shows, and opening the storage removes it.
    async fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError>;

    /// All snapshots of all volumes, also of volumes that are gone, half-removed ones too.
    async fn snapshots(&self) -> Result<Vec<(SandboxId, SnapshotId)>, StorageError>;

    /// How much the volume held of its own when the snapshot was made, as [`Usage::tree`] counts it. Removing the
    /// snapshot gives back as much at most: less where the volume or another snapshot has the same still.
    async fn snapshot_bytes(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<u64, StorageError>;

    /// Removes one snapshot. `Ok` if it is not there. The volume, other snapshots, and forks and layers that were
    /// made from it stay as they are. After a crash half-way it is listed still, or gone.
    async fn delete_snapshot(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<(), StorageError>;

    /// The volume holds again what it held when the snapshot was made; its limits stay, and so do all snapshots,
    /// later ones too. Nothing may be running on it. What it held instead is gone. After an error, a crash or a
    /// loss of power the volume is the old one or the new one, whole; when this has returned, the new one. The
    /// root may be another than before.
    async fn rollback(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Root, StorageError>;

    /// Makes a volume as `create` does, that begins as what the snapshot holds. It stands on its own: it stays
    /// when the snapshot goes, or the volume with all its snapshots. What it got from the snapshot counts
    /// against its quota as if it had written that itself.
    async fn fork(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        new: &SandboxId,
        quota: &Quota,
    ) -> Result<Root, StorageError>;

    /// The tree of a volume, as it is while it is read, or of one of its snapshots. Nobody can write by it, and a
    /// snapshot that is removed meanwhile may be read to the end or answer with errors, but never with
    /// something else.
    async fn view(
        &self,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
    ) -> Result<View, StorageError>;

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

    /// Makes what the volume of a stopped sandbox, or one of its snapshots, holds a layer above `below`, which
    /// are the layers that it was made above, in the same order. Volume and snapshot stay as they are. `Ok` if
    /// the layer is kept already. Nothing may be writing to the volume, unless the layer is made from a
    /// snapshot. A crash leaves what one leaves of a draft.
    async fn layer_from(
        &self,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError>;

    /// All layers that are kept.
    async fn layers(&self) -> Result<Vec<LayerKey>, StorageError>;

    /// Removes a layer. `Ok` if it is not there. Where volumes would lose what they stand on, one that
    /// a volume was made above is [`StorageError::LayerInUse`]; where they have all that they need
    /// themselves, it just goes. Layers above it that are kept stay usable only on the latter.
    async fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError>;

    /// Brings the limits of a volume, or of all, in line with what is in it now, where that is not the filesystem's own
    /// work. For all volumes, it also gives back to the host what the pool no longer needs. It is called at intervals, and after a snapshot when the sandbox runs again, beside all other
    /// methods; it may be left out at any time, and then limits are stricter or laxer than they could be.
    async fn tend(&self, id: Option<&SandboxId>) -> Result<(), StorageError>;

    /// Waits, not for long, until what was removed before is free again: some filesystems clear up by themselves, and
    /// until then say that they are full. Whoever finds no space may call it and try again.
    async fn reclaim(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// How full the place is. Space that it can still grow by counts as free.
    async fn pool_health(&self) -> Result<PoolHealth, StorageError>;

    /// Lets go of what only a running daemon needs (a mount, a loop device), if no volume is left.
    /// Layers do not hinder it: the next one that opens the storage finds them. Called on a clean
    /// shutdown.
    async fn close(&self) -> Result<(), StorageError>;
}

#[cfg(test)]
mod tests;
