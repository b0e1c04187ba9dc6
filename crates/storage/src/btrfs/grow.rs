//! The pool grows before it is full: the file first, with all its blocks, then the device, then the filesystem.
//!
//! Each step is safe to stop at: a filesystem that is smaller than its device, or a device smaller than its file, is
//! made whole when the storage is opened. The other way round would lose data, so the file is on disk before
//! anything else knows of its size.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, TryLockError};

use rustix::fs::{FallocateFlags, fallocate};

use super::{BtrfsOptions, image};
use crate::PoolHealth;
use sandkeep_core::{failpoint, limits};
use sandkeep_sys::{btrfs, loopdev::LoopDevice};

/// How an image grows.
pub(super) struct Growth {
    image: PathBuf,
    /// It stays at most so large.
    max_bytes: u64,
    /// Held by who makes it grow.
    growing: Mutex<()>,
}

impl Growth {
    /// Who asked for a size and for no other to become of it gets that one.
    pub fn new(data_dir: &Path, options: &BtrfsOptions) -> Self {
        let max_bytes = match (options.image_max_bytes, options.image_bytes) {
            (Some(max), _) => max,
            (None, Some(_)) => 0,
            (None, None) => limits::POOL_GROWN_MAX_BYTES,
        };
        Self { image: image::path(data_dir), max_bytes, growing: Mutex::new(()) }
    }

    /// Grows the pool if it is getting full. Whether it could not, its health tells.
    pub fn grow_ahead(&self, pool: &OwnedFd, health: &PoolHealth) -> io::Result<Grown> {
        let used_bytes = health.total_bytes.saturating_sub(health.free_bytes);
        if used_bytes as f64 <= health.total_bytes as f64 * limits::POOL_GROW_AT {
            return Ok(Grown::No);
        }
        let _alone = match self.growing.try_lock() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(Grown::No),
        };
        let image = OpenOptions::new().read(true).write(true).open(&self.image)?;
        let bytes = image.metadata()?.len();
        let target = target(bytes, self.max_bytes, PoolHealth::of(&image)?.free_bytes);
        if target < bytes + limits::POOL_GROW_MIN_BYTES {
            return Ok(Grown::No);
        }
        reserve(&image, bytes, target)?;
        failpoint!("btrfs.grow_after_file");
        reach(&image, pool)?;
        tracing::info!(from_mib = bytes >> 20, to_mib = target >> 20, "the btrfs pool has grown");
        Ok(Grown::Yes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grown {
    Yes,
    No,
}

/// By a quarter, as far as the limit and the disk allow.
fn target(bytes: u64, max_bytes: u64, free_bytes: u64) -> u64 {
    let wanted = bytes.saturating_add((bytes / 4).max(limits::POOL_GROW_MIN_BYTES));
    let to_be_had = free_bytes.saturating_sub(limits::POOL_HOST_RESERVE_BYTES);
    wanted.min(max_bytes).min(bytes.saturating_add(to_be_had))
}

/// Gives the file its new blocks, or none of them.
fn reserve(image: &File, bytes: u64, target: u64) -> io::Result<()> {
    let reserved = fallocate(image, FallocateFlags::empty(), bytes, target - bytes);
    if let Err(error) = reserved {
        image.set_len(bytes)?;
        return Err(error.into());
    }
    image.sync_all()
}

/// Has the device, and the filesystem on it, reach as far as the file does. Nothing happens if they do.
pub(super) fn reach(image: &File, pool: &OwnedFd) -> io::Result<()> {
    if let Some(device) = LoopDevice::find(image)? {
        device.refresh_size()?;
    }
    failpoint!("btrfs.grow_after_device");
    btrfs::grow_to_device(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn a_pool_grows_by_a_quarter_within_its_bounds() {
        let much = 1000 * GIB;
        assert_eq!(target(16 * GIB, much, much), 20 * GIB);
        assert_eq!(target(16 * GIB, 17 * GIB, much), 17 * GIB);
        assert_eq!(target(16 * GIB, much, limits::POOL_HOST_RESERVE_BYTES + MIB), 16 * GIB + MIB);
        assert_eq!(target(16 * GIB, much, 0), 16 * GIB);
        assert_eq!(target(16 * GIB, 0, much), 0);
        assert_eq!(target(256 * MIB, much, much), 256 * MIB + limits::POOL_GROW_MIN_BYTES);
    }
}
