//! Where volumes live. A volume is the filesystem of one sandbox.

mod btrfs;
mod choose;
mod local;
mod offload;
pub(crate) mod tree;

#[cfg(test)]
mod conformance;

use std::path::PathBuf;

use async_trait::async_trait;

use crate::sandbox::SandboxId;

pub use btrfs::{BtrfsOptions, BtrfsStorage};
pub use choose::{Opened, StorageChoice, begun, open};
pub use local::LocalStorage;

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

/// The root of a volume, for the launcher to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// A directory that is the root as it is, with ids as they are inside (unshifted).
    Dir(PathBuf),
}

/// How much a volume holds.
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
#[async_trait]
pub trait Storage: Send + Sync {
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> StorageCapabilities;

    /// Makes an empty volume: a root directory owned by root, mode 0755, with nothing in it.
    /// With `quota_bytes` the quota holds from the first byte. A crash half-way leaves a volume that
    /// `list` shows and `destroy` removes, or nothing.
    async fn create(&self, id: &SandboxId, quota_bytes: Option<u64>) -> Result<Root, StorageError>;

    /// The root of an existing volume.
    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError>;

    /// Removes the volume and all it holds. Idempotent. Nothing may be running on it.
    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError>;

    async fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError>;

    /// Marks the volume's present state under `name`.
    async fn snapshot(&self, id: &SandboxId, name: &str) -> Result<(), StorageError>;

    /// All volumes, half-made ones too.
    async fn list(&self) -> Result<Vec<SandboxId>, StorageError>;

    async fn pool_health(&self) -> Result<PoolHealth, StorageError>;

    /// Lets go of what only a running daemon needs (a mount, a loop device), if no volume is left.
    /// Called on a clean shutdown.
    async fn close(&self) -> Result<(), StorageError>;
}
