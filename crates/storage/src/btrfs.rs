//! Volumes and layers as btrfs subvolumes: created and removed in microseconds regardless of their size, each volume
//! with an enforced quota.
//!
//! ```text
//! <data>/storage/btrfs.img      the pool: a file on a loop device, with every writable block allocated
//! <data>/storage/btrfs/         its mount point: nosuid, nodev, noatime
//!   volumes/<sandbox id>/       one subvolume per volume
//!   volumes/draft.<random>/     temporary volumes of a rollback; removed when the storage is opened
//!   snapshots/<sandbox id>/     a directory, with notes about the volume as its attributes
//!     <snapshot id>/            one read-only subvolume per snapshot
//!   layers/<hex of chain id>/   read-only subvolumes: a layer with everything below it
//!   layers/draft.<random>/      unfinished layers; removed when the storage is opened
//!   balloon/                    space that the pool gives back to the disk
//! ```
//!
//! A volume above layers is a snapshot of the topmost layer. Layers share common data, so a base is stored once for all
//! volumes above it. No subvolume depends on the one that it was created from.
//!
//! A quota counts what is written to its volume: data that a snapshot shares with a layer was charged to the layer when
//! it was written. A changed file of a layer counts as far as it was rewritten.
//!
//! If the data directory itself is on btrfs there is no image and no mount, only the subvolumes. Quotas are then
//! enforced only if the file system's owner has enabled simple quotas, which we must not do ourselves.
//!
//! Invariant: all state is in the kernel. In-memory state is only a cache of it, so a killed daemon loses nothing and a
//! new one sees everything.
//!
//! A subvolume created inside a volume has no quota of its own. The runtime must block the ioctls that create
//! subvolumes, or the quota can be evaded; `destroy` removes such subvolumes all the same.

mod allowance;
mod balloon;
mod image;
mod layers;
mod limit;
mod notes;
mod pool;
mod quota;
mod reclaim;
mod room;
mod seed;
mod size;
mod snapshots;

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, Mode, chmodat, statat};
use rustix::io::Errno;

use super::offload::{Blocking, Offloaded};
use super::{Base, PoolHealth, Quota, StorageCapabilities, StorageError, Usage};
use allowance::Allowances;
use pool::{Pool, PoolKind};
use quota::Quotas;
use sandkeep_core::{SandboxId, limits};
use sandkeep_sys::btrfs::{self, Access, quota::Charged};
use sandkeep_tree::{Root, RootKind, untrusted};
use size::Watch;

const NAME: &str = "btrfs";

/// Prefix of drafts. A draft is beside its final name, because a read-only subvolume cannot be moved into another
/// directory.
const DRAFT: &str = "draft.";

/// How the pool is created.
#[derive(Clone, Debug, Default)]
pub struct BtrfsOptions {
    /// The size of a new image. The default is small, at most
    /// [`POOL_START_BYTES`](sandkeep_core::limits::POOL_START_BYTES). An existing image keeps its size.
    pub image_bytes: Option<u64>,
    /// The maximum size of the image. By default an image with a configured size is fixed, and any other may grow to
    /// [`POOL_GROWN_MAX_BYTES`](sandkeep_core::limits::POOL_GROWN_MAX_BYTES).
    pub image_max_bytes: Option<u64>,
}

pub type BtrfsStorage = Offloaded<Btrfs>;

pub struct Btrfs {
    pool: Arc<Pool>,
    quotas: Quotas,
    allowances: Allowances,
    _watch: Option<Watch>,
}

impl BtrfsStorage {
    /// Opens the pool of a data directory: creates, attaches and mounts it, as far as necessary.
    pub fn open(data_dir: &Path, options: &BtrfsOptions) -> Result<Self, StorageError> {
        let mut inner = Btrfs::open(data_dir, options)?;
        let watch = match inner.pool.kind {
            PoolKind::Image => Some(Watch::of(Arc::clone(&inner.pool))),
            PoolKind::Shared => None,
        };
        inner._watch = watch.transpose().map_err(|source| io_error("watch its pool", source))?;
        Ok(Self::new(inner))
    }

    /// Whether a data directory has a pool, usable or not.
    pub fn has_image(data_dir: &Path) -> bool {
        image::path(data_dir).exists()
    }

    /// Whether a pool of the configured size, if any, fits this disk.
    pub(super) fn check_size(data_dir: &Path, options: &BtrfsOptions) -> Result<(), StorageError> {
        image::check_size(data_dir, options)
    }
}

impl Btrfs {
    /// No thread watches the pool yet, so it grows only by [`Sizing::keep_room`](size::Sizing::keep_room).
    fn open(data_dir: &Path, options: &BtrfsOptions) -> Result<Self, StorageError> {
        let pool = Arc::new(Pool::open(data_dir, options)?);
        let quotas = Quotas::open(&pool)?;
        let opened = Self { pool, quotas, allowances: Allowances::default(), _watch: None };
        opened.sweep();
        Ok(opened)
    }

    /// Removes unfinished drafts. Failures are retried at the next start.
    fn sweep(&self) {
        let rooms = [self.pool.layers(), self.pool.volumes()];
        let drafts = rooms.into_iter().try_for_each(|room| sweep_drafts(&room?));
        if let Err(error) = drafts.and_then(|()| self.sweep_notes()) {
            tracing::warn!(%error, "cannot remove what was left half-made");
        }
    }
}

impl Blocking for Btrfs {
    const NAME: &str = NAME;

    fn capabilities(&self) -> StorageCapabilities {
        StorageCapabilities {
            disk_quota: self.quotas.hold(),
            snapshots: true,
            id_mapped: rustix::process::geteuid().is_root(),
        }
    }

    fn create(&self, id: &SandboxId, base: &Base, quota: &Quota) -> Result<Root, StorageError> {
        let failed = |source| io_error(format!("create {id}"), source);
        let volumes = self.pool.volumes().map_err(failed)?;
        let name = c_name(id);
        let top = self.open_top(base.layers())?;
        let charged = Charged { limit_bytes: quota.tree_bytes, group: None };
        let made = self.creating(|| match &top {
            Some(top) => btrfs::snapshot_subvolume(&volumes, &name, top, Access::Write, charged),
            None => btrfs::create_subvolume(&volumes, &name, charged),
        });
        made.map_err(|source| exists_or(id, failed, source))?;
        if top.is_none() {
            // The kernel applies the daemon's umask to the mode.
            chmodat(&volumes, &name, Mode::from_raw_mode(0o755), AtFlags::empty())
                .map_err(|error| failed(error.into()))?;
        }
        if let Some(total_bytes) = quota.total_bytes {
            self.limit_total(&volumes, &name, total_bytes).map_err(failed)?;
        }
        Ok(Root::Dir(self.pool.volume_path(id)))
    }

    fn root_kind(&self, _: &Base) -> RootKind {
        RootKind::Dir
    }

    fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        let what = || format!("open {id}");
        let volumes = self.pool.volumes().map_err(|source| io_error(what(), source))?;
        match statat(&volumes, c_name(id), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if is_subvolume(&stat) => Ok(Root::Dir(self.pool.volume_path(id))),
            Ok(_) | Err(Errno::NOENT) => Err(StorageError::NotFound { id: id.clone() }),
            Err(error) => Err(io_error(what(), error.into())),
        }
    }

    fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        // The volume last, so that after a crash it is still listed.
        let deleted =
            self.delete_snapshots(id).and_then(|()| delete(&self.pool.volumes()?, &c_name(id)));
        deleted.map_err(|source| io_error(format!("destroy {id}"), source))?;
        self.quotas.volume_destroyed(&self.pool);
        Ok(())
    }

    fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError> {
        self.root(id)?;
        self.measure(id).map_err(|source| io_error(format!("measure {id}"), source))
    }

    fn list(&self) -> io::Result<Vec<SandboxId>> {
        let volumes = self.pool.volumes()?;
        let mut ids = Vec::new();
        for (name, _) in untrusted::entries(&volumes)? {
            let Some(id) = name.to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            match statat(&volumes, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if is_subvolume(&stat) => ids.push(id),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(ids)
    }

    fn tend(&self, id: Option<&SandboxId>) -> Result<(), StorageError> {
        let limited = self.quotas.hold();
        match id {
            Some(id) if limited => {
                let tended = self.tend_volume(id).map(drop);
                tended.map_err(|source| io_error(format!("look after the limit of {id}"), source))
            }
            Some(_) => Ok(()),
            None if limited => {
                self.tend_all().map_err(|source| io_error("look after limits", source))
            }
            None => Ok(()),
        }
    }

    fn reclaim(&self) -> Result<(), StorageError> {
        let reclaimed = self.pool.reclaim(Instant::now() + limits::POOL_RECLAIM_MAX);
        reclaimed.map(drop).map_err(|source| io_error("free what was removed", source))
    }

    fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        self.pool.health().map_err(|source| io_error("look at its pool", source))
    }

    fn close(&self, idle: &[SandboxId]) -> Result<(), StorageError> {
        let volumes = self.list().map_err(|source| io_error("list volumes", source))?;
        if volumes.iter().all(|volume| idle.contains(volume)) {
            self.pool.release()
        } else {
            Ok(())
        }
    }
}

/// Removes a subvolume with all nested ones. `Ok` if it does not exist.
fn delete(parent: &OwnedFd, name: &CStr) -> io::Result<()> {
    let deleted = match btrfs::delete_subvolume(parent, name) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            delete_nested(btrfs::subvolume_id(untrusted::open_dir(parent, name)?)?, parent)?;
            btrfs::delete_subvolume(parent, name)
        }
        deleted => deleted,
    };
    match deleted {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}

/// Removes all subvolumes nested in one, innermost first.
fn delete_nested(outer: btrfs::SubvolumeId, filesystem: impl std::os::fd::AsFd) -> io::Result<()> {
    let filesystem = filesystem.as_fd();
    let mut found = btrfs::children(filesystem, outer)?;
    let mut next = 0;
    while next < found.len() {
        found.extend(btrfs::children(filesystem, found[next])?);
        next += 1;
    }
    for id in found.into_iter().rev() {
        btrfs::delete_subvolume_by_id(filesystem, id)?;
    }
    Ok(())
}

/// Removes all drafts in a directory.
fn sweep_drafts(room: &OwnedFd) -> io::Result<()> {
    let entries = untrusted::entries(room)?.into_iter();
    let mut drafts = entries.filter(|(name, _)| name.to_bytes().starts_with(DRAFT.as_bytes()));
    drafts.try_for_each(|(name, _)| delete(room, &name))
}

fn unused_draft() -> CString {
    let name = format!("{DRAFT}{}", untrusted::unused_name().to_string_lossy());
    CString::new(name).expect("hexadecimal digits hold no NUL")
}

/// A volume is created only once.
fn exists_or(
    id: &SandboxId,
    failed: impl FnOnce(io::Error) -> StorageError,
    source: io::Error,
) -> StorageError {
    match source.kind() {
        io::ErrorKind::AlreadyExists => StorageError::Exists { id: id.clone() },
        _ => failed(source),
    }
}

fn is_subvolume(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        && stat.st_ino == btrfs::SUBVOLUME_INODE
}

fn c_name(id: &SandboxId) -> CString {
    CString::new(id.as_str()).expect("an id has only letters and digits")
}

fn io_error(what: impl Into<String>, source: io::Error) -> StorageError {
    StorageError::of_io(NAME, what, source)
}

fn unusable(reason: impl Into<String>) -> StorageError {
    StorageError::Unusable { storage: NAME, reason: reason.into() }
}

#[cfg(test)]
pub(super) mod tests;
