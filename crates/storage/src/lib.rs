//! Volumes, the layers below them, and their snapshots. A volume is the file system of one sandbox. [`Storage`] is the
//! contract; [`open`] chooses among the three implementations.
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
mod foreign;
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
pub use foreign::ForeignTree;
pub use layer::{Base, InvalidLayerId, LayerDraft, LayerId, LayerKey, Whiteouts};
pub use local::LocalStorage;
pub use quota::{Amount, Limit, Quota, Usage};
pub use zfs::{
    Dataset, DatasetSnapshot, Holding, InvalidDataset, InvalidDatasetSnapshot, Whose, ZfsStorage,
};

/// Capabilities of this storage on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StorageCapabilities {
    /// `disk_mb` and `disk_total_mb` are enforced: writing beyond one fails with ENOSPC or EDQUOT inside.
    pub disk_quota: bool,
    /// Snapshot, rollback and fork.
    pub snapshots: bool,
    /// The file system can be id-mapped, so every sandbox has its own id range. Otherwise a root daemon gives all
    /// sandboxes one shared range, and the files have ids of that range.
    pub id_mapped: bool,
}

/// The fill level of the place where all volumes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHealth {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

impl PoolHealth {
    /// That of the file system that contains a file.
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
    /// A base names a layer that is not stored here; nothing was created.
    #[error("there is no layer {layer}; import its template again")]
    LayerMissing { layer: LayerId },
    #[error("there is no snapshot {snapshot}")]
    NoDatasetSnapshot { snapshot: String },
    #[error("{count} layers are more than the {max} that a volume can stand on")]
    TooManyLayers { count: usize, max: usize },
    /// Removing it would break a volume; nothing was removed.
    #[error("layer {layer} is in use by {id}; destroy that first")]
    LayerInUse { layer: LayerKey, id: SandboxId },
    /// The storage cannot be used on this machine; `reason` says what is missing.
    #[error("{storage} storage is not usable here: {reason}")]
    Unusable { storage: &'static str, reason: String },
    /// The pool, or the limit of the volume with its snapshots, has no room for it. Nothing was created.
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
/// - Every method may be called again after a crash in the middle. `destroy` of a volume that does not exist is `Ok`,
///   so that reconcile can simply repeat it.
/// - A volume's name is only its sandbox id; a volume that `list` returns is complete or half-created, and never
///   another instance's.
/// - A snapshot belongs to a volume and is removed with it. It is listed once it is complete and on disk, and not
///   before. It never changes: not by writes to the volume or a fork, not by a rollback to it or to another, not by the
///   removal of another snapshot.
/// - The caller ensures that methods which change the same volume or its snapshots do not overlap. Those of different
///   volumes may.
/// - A layer is listed once it is complete and on disk, and not before. It never changes. The storage does not know
///   which layers are needed: the caller must not remove one that a template or a volume needs, and must not let a
///   removal overlap with a draft or a create above the same layers.
#[async_trait]
pub trait Storage: Send + Sync {
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> StorageCapabilities;

    /// Creates a volume. Without a base it is an empty root directory owned by root, mode 0755. Above layers it shows
    /// all of them merged, and its root directory has mode and owner of the topmost. The time does not depend on the
    /// amount of data below, and writes to the volume never change a layer. The quota is enforced from the first byte,
    /// for the volume's own data. If a layer is not stored, the result is [`StorageError::LayerMissing`]. A crash in
    /// the middle leaves a volume that `list` returns and `destroy` removes, or nothing.
    async fn create(
        &self,
        id: &SandboxId,
        base: &Base,
        quota: &Quota,
    ) -> Result<Root, StorageError>;

    /// The kind of root that [`create`](Self::create) gives a volume above `base`. No IO: callers check first whether
    /// they can use such a volume.
    fn root_kind(&self, base: &Base) -> RootKind;

    /// The root of an existing volume.
    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError>;

    /// Removes the volume with all its data and snapshots, but no layer and no fork. Idempotent. Nothing may be running
    /// on it. A crash in the middle leaves something that `list` or `snapshots` returns, or that opening the storage
    /// removes.
    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError>;

    /// Copies of this volume's data, or into it, that are under way now are not wanted any more: they fail soon and leave
    /// nothing. One that begins later is not affected. Does nothing where no operation takes long.
    fn break_off(&self, id: &SandboxId) {
        let _ = id;
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError>;

    /// All volumes, including half-created ones.
    async fn list(&self) -> Result<Vec<SandboxId>, StorageError>;

    /// Takes a snapshot of the volume, under an unused id. Nothing writes to the volume meanwhile: the caller has
    /// stopped or frozen the sandbox. The snapshot contains everything written, synced or not, and is on disk when this
    /// returns. A caller that freezes for it writes back first (`syncfs` of the root), so that the freeze is short.
    /// After an error or a crash the snapshot is complete or does not exist: remains are invisible to all methods, and
    /// opening the storage removes them.
    async fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError>;

    /// All snapshots of all volumes, including volumes that are gone, and half-removed snapshots.
    async fn snapshots(&self) -> Result<Vec<(SandboxId, SnapshotId)>, StorageError>;

    /// The volume's own size when the snapshot was taken, counted like [`Usage::tree`]. Removing the snapshot frees at
    /// most this much: less if the volume or another snapshot still shares data.
    async fn snapshot_bytes(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<u64, StorageError>;

    /// Removes one snapshot. `Ok` if it does not exist. The volume, other snapshots, and forks and layers created from
    /// it are unchanged. After a crash in the middle it is still listed, or gone.
    async fn delete_snapshot(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<(), StorageError>;

    /// Restores the volume's content from the snapshot; its limits and all snapshots, including later ones, are kept.
    /// Nothing may be running on it. The previous content is lost. After an error, a crash or a power loss the volume
    /// is completely old or completely new; when this has returned, new. The root may be another than before.
    async fn rollback(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Root, StorageError>;

    /// Creates a volume like `create`, with the content of the snapshot. It is independent: it stays when the snapshot
    /// is removed, or the volume with all its snapshots. The content of the snapshot counts against its quota as if it
    /// had been written.
    async fn fork(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        new: &SandboxId,
        quota: &Quota,
    ) -> Result<Root, StorageError>;

    /// The tree of a volume, in its changing present state, or of one of its snapshots. It is read-only. If a snapshot
    /// is removed meanwhile, it may be read to the end or return errors, but never other data.
    async fn view(
        &self,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
    ) -> Result<View, StorageError>;

    /// The key of the topmost of these layers (lowest first). No IO: the layer need not exist. Storages that store
    /// differences return the same key whatever is below; storages that store whole trees do not. `None` for no layers.
    fn layer_key(&self, layers: &[LayerId]) -> Option<LayerKey>;

    /// Starts a layer above others, which must be stored (otherwise [`StorageError::LayerMissing`]). `None` if it is
    /// stored already. Two drafts of one layer do not interfere. After a crash the remains are invisible to all
    /// methods, and opening the storage removes them.
    async fn draft_layer(
        &self,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<Option<LayerDraft>, StorageError>;

    /// Stores a draft as a layer, in one step and permanently: when this returns, the layer survives a power loss. Also
    /// `Ok` if another draft of it was stored meanwhile; then this one is removed. After an error, or a crash, the
    /// layer is complete or does not exist.
    async fn keep_layer(&self, draft: LayerDraft) -> Result<(), StorageError>;

    /// Removes a draft; returns when it is gone. Dropping a draft does the same without waiting.
    async fn abort_layer(&self, draft: LayerDraft) -> Result<(), StorageError> {
        offload::offload(self.name(), move || {
            draft.discard();
            Ok(())
        })
        .await
    }

    /// Makes the content of a stopped sandbox's volume, or of one of its snapshots, a layer above `below`: the layers
    /// that it was created above, in the same order. Volume and snapshot are unchanged. `Ok` if the layer is stored
    /// already. Nothing may be writing to the volume, unless the layer is made from a snapshot. A crash has the same
    /// effect as for a draft.
    async fn layer_from(
        &self,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError>;

    /// All stored layers.
    async fn layers(&self) -> Result<Vec<LayerKey>, StorageError>;

    /// Removes a layer. `Ok` if it does not exist. If volumes would lose their base, removing one with volumes above it
    /// is [`StorageError::LayerInUse`]; if volumes have everything they need themselves, it is simply removed. Stored
    /// layers above it remain usable only in the latter case.
    async fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError>;

    /// Opens a snapshot that is not of this storage, but in its pool, in constant time. It must not be one of any data
    /// directory's own datasets. The remains of a crash are removed when the storage is opened.
    async fn foreign(&self, _snapshot: &DatasetSnapshot) -> Result<ForeignTree, StorageError> {
        let what = "open snapshots of datasets";
        Err(StorageError::Unsupported { storage: self.name(), what })
    }

    /// Updates the limits of a volume, or of all, to their current content, where the file system does not do that
    /// itself. For all volumes, it also gives unused space of the pool back to the host. It is called at intervals, and
    /// after a snapshot when the sandbox runs again, concurrently with all other methods. It may be skipped at any
    /// time; limits are then stricter or laxer than necessary.
    async fn tend(&self, id: Option<&SandboxId>) -> Result<(), StorageError>;

    /// Waits, not for long, until what was removed before is free again: some filesystems clear up by themselves, and
    /// until then say that they are full. A caller that finds no space may call this and try again.
    async fn reclaim(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// How full the place is. Space that it can still grow by counts as free.
    async fn pool_health(&self) -> Result<PoolHealth, StorageError>;

    /// Releases what only a running daemon needs (a mount, a loop device), if no volume is left but those of `idle`, which
    /// no process uses. Neither they nor layers prevent it: the next daemon that opens the storage finds them. Called on
    /// a clean shutdown.
    async fn close(&self, idle: &[SandboxId]) -> Result<(), StorageError>;
}

#[cfg(test)]
mod tests;
