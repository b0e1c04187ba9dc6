//! The size of the pool follows what is in it: it begins small and grows before it is full.
//!
//! The image always has all its blocks, so that a full host disk never becomes an I/O error inside btrfs.
//!
//! - **Growing** is file first (allocated and synced), then loop device, then filesystem. So the filesystem is never
//!   larger than its file, and a crash between two steps leaves a file with a tail that is not in use: opening the storage
//!   makes the filesystem as large as the file.
//! - A sandbox can write faster than anybody asks for the health of the pool, so a thread checks the room every
//!   [`POOL_LOOK_INTERVAL`](limits::POOL_LOOK_INTERVAL). A writer that comes near the end is slowed down by the kernel,
//!   which writes back what is dirty before it answers ENOSPC. One single reservation (`fallocate`) of more than the
//!   free space cannot be foreseen and fails.
//! - btrfs divides its space into chunks of data and chunks of metadata. Data must not take all of it: without room for
//!   metadata nothing can be written, and the filesystem cannot even be resized.
//! - A pool does not shrink. If the kernel finds no place for metadata below the new end, it aborts the transaction, and
//!   the filesystem is read-only for everybody.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::{FallocateFlags, fallocate};

use super::room::Room;
use super::{BtrfsOptions, image, pool::open_dir};
use crate::PoolHealth;
use sandkeep_core::{failpoint, limits};
use sandkeep_sys::btrfs;
use sandkeep_sys::loopdev::LoopDevice;

/// How small and how large a pool may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub min_bytes: u64,
    pub max_bytes: u64,
}

impl Bounds {
    /// `None` for a pool of a fixed size: the operator asked for a size and named no maximum.
    pub fn of(options: &BtrfsOptions) -> Option<Self> {
        let max_bytes = match (options.image_max_bytes, options.image_bytes) {
            (Some(max), _) => max,
            (None, Some(_)) => return None,
            (None, None) => limits::POOL_GROWN_MAX_BYTES,
        };
        let min_bytes = options.image_bytes.unwrap_or(limits::POOL_START_BYTES.min(max_bytes));
        Some(Self { min_bytes, max_bytes })
    }

    /// What a pool that needs room grows to, as far as its maximum and the disk allow.
    fn larger(self, bytes: u64, disk_free_bytes: u64) -> u64 {
        let step = (bytes / limits::POOL_GROW_SHARE).max(limits::POOL_STEP_BYTES.min(bytes));
        bytes.saturating_add(step).min(self.largest(bytes, disk_free_bytes))
    }

    /// How large the pool could become now.
    fn largest(self, bytes: u64, disk_free_bytes: u64) -> u64 {
        let to_be_had = disk_free_bytes.saturating_sub(limits::POOL_HOST_RESERVE_BYTES);
        bytes.saturating_add(to_be_had).min(self.max_bytes).max(bytes)
    }
}

/// The size of a pool that is not fixed.
pub(super) struct Sizing {
    image: PathBuf,
    /// Where the pool is mounted. Opened for each resize: a descriptor that is held would keep it from being unmounted.
    mounted: PathBuf,
    filesystem_id: [u8; 16],
    bounds: Bounds,
    /// The size of the filesystem.
    bytes: AtomicU64,
    /// Held while the pool is resized.
    resizing: Mutex<()>,
}

impl Sizing {
    pub fn new(
        data_dir: &Path,
        mounted: &Path,
        filesystem_id: [u8; 16],
        bounds: Bounds,
    ) -> io::Result<Arc<Self>> {
        let top = open_dir(mounted)?;
        let bytes = PoolHealth::of(&top)?.total_bytes;
        // A new filesystem has a few mebibytes of it, which a fast writer uses up before there is more.
        let few = |room: &Room| room.metadata_bytes < limits::POOL_METADATA_MIN_BYTES;
        if Room::of(filesystem_id)?.is_some_and(|room| few(&room) && room.can_move_metadata(bytes))
        {
            btrfs::relocate_metadata(&top)?;
        }
        Ok(Arc::new(Self {
            image: image::path(data_dir),
            mounted: mounted.to_owned(),
            filesystem_id,
            bounds,
            bytes: AtomicU64::new(bytes),
            resizing: Mutex::default(),
        }))
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// By how much the pool could grow now.
    pub fn growth_bytes(&self) -> io::Result<u64> {
        let bytes = self.bytes();
        let disk_free_bytes = PoolHealth::of(File::open(&self.image)?)?.free_bytes;
        Ok(self.bounds.largest(bytes, disk_free_bytes) - bytes)
    }

    /// Grows the pool if it is getting full.
    pub fn keep_room(&self) -> io::Result<()> {
        let Some(room) = Room::of(self.filesystem_id)? else { return Ok(()) };
        let _alone = self.alone();
        if room.is_low(self.bytes(), self.bounds.min_bytes) { self.grow() } else { Ok(()) }
    }

    fn grow(&self) -> io::Result<()> {
        let image = self.open_image()?;
        let before = image.metadata()?.len();
        let mut target = before;
        // Otherwise an earlier resize did not come to its end.
        if self.bytes() >= before {
            target = self.bounds.larger(before, PoolHealth::of(&image)?.free_bytes);
            if target < before + limits::POOL_GROW_MIN_BYTES {
                return Ok(());
            }
            reserve(&image, before, target)?;
            failpoint!("btrfs.grow_after_file");
        }
        reach(&image, &open_dir(&self.mounted)?)?;
        self.bytes.store(target, Ordering::Relaxed);
        tracing::info!(from_mib = before >> 20, to_mib = target >> 20, "the btrfs pool has grown");
        Ok(())
    }

    /// Nobody resizes the pool for as long as this is held.
    pub fn alone(&self) -> MutexGuard<'_, ()> {
        self.resizing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_image(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(&self.image)
    }
}

/// The thread that checks the room of a pool. It ends when this is dropped.
pub(super) struct Watch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn of(sizing: Arc<Sizing>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let look_again = move || {
            stopped.recv_timeout(limits::POOL_LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout)
        };
        let thread =
            std::thread::Builder::new().name("pool-watch".to_owned()).spawn(move || {
                let mut said = None;
                while look_again() {
                    let problem = sizing.keep_room().err().map(|error| error.to_string());
                    if let Some(error) = problem.as_ref().filter(|_| problem != said) {
                        tracing::warn!(error, "the btrfs pool cannot grow");
                    }
                    said = problem;
                }
            })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has said by itself what went wrong.
            let _ = thread.join();
        }
    }
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

/// Makes the device, and the filesystem on it, as large as the file. Nothing happens if they are.
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
    const MUCH: u64 = 1000 * GIB;

    fn bounds(max_bytes: u64) -> Bounds {
        Bounds { min_bytes: GIB, max_bytes }
    }

    #[test]
    fn a_pool_grows_in_steps_within_its_bounds() {
        assert_eq!(bounds(MUCH).larger(256 * MIB, MUCH), 512 * MIB);
        assert_eq!(bounds(MUCH).larger(GIB, MUCH), 2 * GIB);
        assert_eq!(bounds(MUCH).larger(16 * GIB, MUCH), 20 * GIB);
        assert_eq!(bounds(17 * GIB).larger(16 * GIB, MUCH), 17 * GIB);
        let little = limits::POOL_HOST_RESERVE_BYTES + MIB;
        assert_eq!(bounds(MUCH).larger(16 * GIB, little), 16 * GIB + MIB);
        assert_eq!(bounds(MUCH).larger(16 * GIB, 0), 16 * GIB);
        assert_eq!(bounds(0).larger(16 * GIB, MUCH), 16 * GIB);
    }

    #[test]
    fn a_pool_whose_size_was_asked_for_is_fixed_unless_a_maximum_is() {
        let options = |image_bytes, image_max_bytes| BtrfsOptions { image_bytes, image_max_bytes };
        assert_eq!(Bounds::of(&options(Some(GIB), None)), None);
        let may = |min_bytes, max_bytes| Some(Bounds { min_bytes, max_bytes });
        assert_eq!(Bounds::of(&options(Some(4 * GIB), Some(5 * GIB))), may(4 * GIB, 5 * GIB));
        assert_eq!(Bounds::of(&options(None, Some(512 * MIB))), may(512 * MIB, 512 * MIB));
        assert_eq!(Bounds::of(&options(None, None)), may(GIB, limits::POOL_GROWN_MAX_BYTES));
    }
}
