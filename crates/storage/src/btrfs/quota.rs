//! Quotas of the pool. Only simple quotas are used: they charge an extent to the subvolume that wrote it, in constant
//! time. With full qgroups a commit can take seconds.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use super::io_error;
use super::pool::{Pool, PoolKind};
use crate::{Amount, StorageError};
use sandkeep_core::limits;
use sandkeep_sys::btrfs::{
    self,
    quota::{self, GroupId},
};

pub(super) struct Quotas {
    /// Their directory in sysfs; `None` if they are not enabled.
    shown: Option<PathBuf>,
    /// Held shared by every create and exclusively by the sweep, which must not mistake the group of a subvolume that
    /// is being created for an orphaned one.
    creating: RwLock<()>,
    destroyed: AtomicUsize,
}

impl Quotas {
    pub fn open(pool: &Pool) -> Result<Self, StorageError> {
        let failed = |source| io_error("turn quotas on", source);
        let top = pool.volumes().map_err(failed)?;
        if pool.kind == PoolKind::Image {
            match quota::enable_simple(&top) {
                Ok(()) => {}
                // The kernel has none; `shown` will detect that.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                Err(source) => return Err(failed(source)),
            }
        }
        let shown = sysfs(pool.filesystem_id).join("qgroups");
        let simple = std::fs::read_to_string(shown.join("mode"));
        let shown = simple.is_ok_and(|mode| mode.trim() == "squota").then_some(shown);
        let quotas = Self { shown, creating: RwLock::new(()), destroyed: AtomicUsize::new(0) };
        quotas.sweep(pool);
        Ok(quotas)
    }

    /// Whether limits are enforced.
    pub fn hold(&self) -> bool {
        self.shown.is_some()
    }

    /// Runs an operation that creates a subvolume.
    pub fn while_creating<T>(&self, create: impl FnOnce() -> T) -> T {
        let _shared = self.creating.read().unwrap_or_else(PoisonError::into_inner);
        create()
    }

    /// The amount charged to a group, including data that is not yet on disk, and its limit; `None` without quotas.
    pub fn amount(&self, group: GroupId) -> io::Result<Option<Amount>> {
        const MAX_REFERENCED: u64 = 1;
        let Some(shown) = &self.shown else { return Ok(None) };
        let group = shown.join(format!("{}_{}", group.level(), group.number()));
        let used_bytes = number(&group, "referenced")? + number(&group, "rsv_data")?;
        let limited = number(&group, "limit_flags")? & MAX_REFERENCED != 0;
        let limit_bytes = if limited { Some(number(&group, "max_referenced")?) } else { None };
        Ok(Some(Amount { used_bytes, limit_bytes }))
    }

    /// Counts a destroyed volume; at intervals this removes orphaned groups.
    pub fn volume_destroyed(&self, pool: &Pool) {
        let count = self.destroyed.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(limits::QUOTA_SWEEP_EVERY) {
            self.sweep(pool);
        }
    }

    /// Removes the groups of subvolumes that are gone, and those above them. Kernels before 6.11 keep them forever,
    /// newer ones drop them when a subvolume is cleaned up.
    fn sweep(&self, pool: &Pool) {
        if !self.hold() || pool.kind == PoolKind::Shared {
            return;
        }
        if let Err(error) = self.remove_dead_groups(pool) {
            tracing::warn!(%error, "cannot remove quota groups of destroyed volumes");
        }
    }

    fn remove_dead_groups(&self, pool: &Pool) -> io::Result<()> {
        let top = pool.volumes()?;
        let _alone = self.creating.write().unwrap_or_else(PoisonError::into_inner);
        let alive: HashSet<GroupId> =
            btrfs::subvolumes(&top)?.into_iter().map(GroupId::of).collect();
        for group in quota::groups(&top)? {
            let dead = match group.level() {
                0 => !alive.contains(&group),
                _ => !quota::related(&top, group)?.iter().any(|member| alive.contains(member)),
            };
            if dead {
                remove(&top, group)?;
            }
        }
        Ok(())
    }
}

fn remove(top: impl AsFd, group: GroupId) -> io::Result<()> {
    match quota::remove(top, group) {
        // The kernel was faster, or extents that it wrote are still shared by another volume.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy) =>
        {
            Ok(())
        }
        removed => removed,
    }
}

/// A number in a sysfs file.
pub(super) fn number(directory: &Path, file: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(directory.join(file))?;
    text.trim().parse().map_err(io::Error::other)
}

/// The sysfs directory of a file system: its id as a UUID.
pub(super) fn sysfs(id: [u8; 16]) -> PathBuf {
    let hex = hex::encode(id);
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Path::new("/sys/fs/btrfs").join(parts.join("-"))
}
