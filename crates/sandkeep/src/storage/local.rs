//! Volumes as plain directories: works everywhere, without quota and snapshots.
//!
//! ```text
//! <data>/storage/local/         0700
//!   <sandbox id>/               0755: the root of a volume
//!   .trash/<id>.<random>/       what is being removed; swept when the storage is opened
//! ```
//!
//! Invariant: a volume is gone from `list` at once, by one rename; only then is it emptied.

use std::ffi::{CStr, CString};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, chmodat, mkdirat, open, renameat, unlinkat};
use rustix::io::Errno;

use super::offload::offload;
use super::{PoolHealth, Root, Storage, StorageCapabilities, StorageError, Usage, tree};
use crate::sandbox::SandboxId;
use crate::sys::btrfs;

const NAME: &str = "local";
const TRASH: &CStr = c".trash";

pub struct LocalStorage {
    inner: Arc<Inner>,
    capabilities: StorageCapabilities,
}

struct Inner {
    path: PathBuf,
    volumes: OwnedFd,
    trash: OwnedFd,
}

impl LocalStorage {
    /// Opens the storage in a data directory, or makes it, and removes what a crash left half-removed.
    pub fn open(data_dir: &Path) -> Result<Self, StorageError> {
        let path = data_dir.join("storage").join("local");
        let inner = Inner::open(path).map_err(|source| io_error("open its directory", source))?;
        inner.sweep();
        let capabilities = StorageCapabilities {
            disk_quota: false,
            snapshots: false,
            id_mapped: id_mapped(&inner.volumes)
                .map_err(|source| io_error("look at its filesystem", source.into()))?,
        };
        Ok(Self { inner: Arc::new(inner), capabilities })
    }

    /// Whether a data directory has volumes here. What cannot be read has none.
    pub(super) fn holds_volumes(data_dir: &Path) -> bool {
        let path = data_dir.join("storage").join("local");
        std::fs::read_dir(path).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|entry| {
                    entry.file_name().to_str().is_some_and(|n| n.parse::<SandboxId>().is_ok())
                })
            })
        })
    }

    async fn offload<T: Send + 'static>(
        &self,
        id: &SandboxId,
        work: impl FnOnce(&Inner, &SandboxId) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let (inner, id) = (Arc::clone(&self.inner), id.clone());
        offload(NAME, move || work(&inner, &id)).await
    }
}

impl Inner {
    fn open(path: PathBuf) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let volumes = open(&path, flags, Mode::empty())?;
        match mkdirat(&volumes, TRASH, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let trash = tree::open_dir(&volumes, TRASH)?;
        Ok(Self { path, volumes, trash })
    }

    /// What cannot be removed now is tried again at the next start.
    fn sweep(&self) {
        if let Err(error) = tree::empty(&self.trash) {
            tracing::warn!(%error, path = %self.path.display(), "cannot empty the trash");
        }
    }

    fn create(&self, id: &SandboxId) -> Result<Root, StorageError> {
        let name = c_name(id);
        match mkdirat(&self.volumes, &name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(StorageError::Exists { id: id.clone() }),
            Err(error) => return Err(io_error(format!("create {id}"), error.into())),
        }
        // Not by mkdir's mode, which the umask narrows.
        chmodat(&self.volumes, &name, Mode::from_raw_mode(0o755), AtFlags::empty())
            .map_err(|error| io_error(format!("create {id}"), error.into()))?;
        Ok(Root::Dir(self.path.join(id.as_str())))
    }

    fn open_volume(&self, id: &SandboxId) -> Result<OwnedFd, StorageError> {
        tree::open_dir(&self.volumes, &c_name(id)).map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => StorageError::NotFound { id: id.clone() },
            error => io_error(format!("open {id}"), error.into()),
        })
    }

    fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        self.remove(&c_name(id)).map_err(|source| io_error(format!("destroy {id}"), source))
    }

    fn remove(&self, name: &CStr) -> io::Result<()> {
        let trashed = tree::unused_name();
        match renameat(&self.volumes, name, &self.trash, &trashed) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        match tree::open_dir(&self.trash, &trashed) {
            Ok(top) => {
                tree::empty(top)?;
                Ok(unlinkat(&self.trash, &trashed, AtFlags::REMOVEDIR)?)
            }
            // A file in the place of a volume.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Ok(unlinkat(&self.trash, &trashed, AtFlags::empty())?)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn list(&self) -> io::Result<Vec<SandboxId>> {
        let entries = tree::entries(&self.volumes)?;
        Ok(entries
            .into_iter()
            .filter(|(_, kind)| *kind == FileType::Directory)
            .filter_map(|(name, _)| name.to_str().ok()?.parse().ok())
            .collect())
    }
}

#[async_trait]
impl Storage for LocalStorage {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> StorageCapabilities {
        self.capabilities
    }

    async fn create(&self, id: &SandboxId, quota_bytes: Option<u64>) -> Result<Root, StorageError> {
        if quota_bytes.is_some() {
            return Err(StorageError::Unsupported { storage: NAME, what: "limit a volume's size" });
        }
        self.offload(id, |inner, id| inner.create(id)).await
    }

    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        self.offload(id, |inner, id| {
            inner.open_volume(id)?;
            Ok(Root::Dir(inner.path.join(id.as_str())))
        })
        .await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        self.offload(id, |inner, id| inner.destroy(id)).await
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError> {
        self.offload(id, |inner, id| {
            let used_bytes = tree::disk_bytes(inner.open_volume(id)?)
                .map_err(|source| io_error(format!("measure {id}"), source))?;
            Ok(Usage { used_bytes, limit_bytes: None })
        })
        .await
    }

    async fn snapshot(&self, _id: &SandboxId, _name: &str) -> Result<(), StorageError> {
        Err(StorageError::Unsupported { storage: NAME, what: "make snapshots" })
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StorageError> {
        let inner = Arc::clone(&self.inner);
        offload(NAME, move || inner.list().map_err(|source| io_error("list volumes", source))).await
    }

    async fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        tree::health(&self.inner.volumes)
            .map_err(|source| io_error("look at its filesystem", source.into()))
    }

    /// There is nothing that only a running daemon needs.
    async fn close(&self) -> Result<(), StorageError> {
        Ok(())
    }
}

fn c_name(id: &SandboxId) -> CString {
    CString::new(id.as_str()).expect("an id has only letters and digits")
}

fn io_error(what: impl Into<String>, source: io::Error) -> StorageError {
    StorageError::Io { storage: NAME, what: what.into(), source }
}

/// Whether root can give every sandbox its own ids here, by the filesystems known to do so.
fn id_mapped(directory: &OwnedFd) -> rustix::io::Result<bool> {
    const EXT4: i64 = 0xEF53;
    const XFS: i64 = 0x5846_5342;
    const F2FS: i64 = 0xF2F5_2010;
    const TMPFS: i64 = 0x0102_1994;
    let kind = rustix::fs::fstatfs(directory)?.f_type;
    let able = [EXT4, XFS, F2FS, TMPFS, btrfs::MAGIC].contains(&kind);
    Ok(able && rustix::process::geteuid().is_root())
}

#[cfg(test)]
pub(super) mod tests;
