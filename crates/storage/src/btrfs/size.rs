//! The size of the pool follows what is in it. It begins small, grows before it is full and gives back what is no
//! longer used.
//!
//! The image always has all its blocks, so that a full host disk never becomes an I/O error inside btrfs. Space is
//! therefore given back by making the filesystem and the file smaller, never by discarding blocks within the file.
//!
//! - **Growing** is file first (allocated and synced), then loop device, then filesystem. **Shrinking** is the other way
//!   round. So the filesystem is never larger than its file, and a crash between two steps leaves a file with a tail that
//!   is not in use: opening the storage makes the filesystem as large as the file.
//! - A sandbox can write faster than anybody asks for the health of the pool, so a thread checks the room every
//!   [`POOL_LOOK_INTERVAL`](limits::POOL_LOOK_INTERVAL). A writer that comes near the end is slowed down by the kernel,
//!   which writes back what is dirty before it answers ENOSPC. One single reservation (`fallocate`) of more than the
//!   free space cannot be foreseen and fails.
//! - btrfs divides its space into chunks of data and chunks of metadata. Data must not take all of it: without room for
//!   metadata nothing can be written, and the filesystem cannot even be resized.
//! - Shrinking must not move metadata: if the kernel finds no place for it below the new end, it aborts the transaction
//!   and the filesystem becomes read-only. Metadata that is in the way is moved before, while there is space in plenty,
//!   to where data leaves room for it.
//! - Only one resize runs at a time. A shrink that is in the way of a fast writer is cancelled.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::room::Room;
use super::{BtrfsOptions, image, pool::open_dir};
use crate::PoolHealth;
use sandkeep_core::{failpoint, limits};
use sandkeep_sys::btrfs::{self, Relocate, Resize};
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

    /// What a pool that is much too large shrinks to in one step.
    fn smaller(self, bytes: u64, room: &Room) -> Option<u64> {
        let needed = room.needed_bytes(self.min_bytes).next_multiple_of(limits::MIB);
        let needed = needed.max(self.min_bytes);
        if bytes.saturating_sub(needed) < bytes / limits::POOL_SHRINK_SURPLUS_SHARE {
            return None;
        }
        let step = (bytes / limits::POOL_SHRINK_SHARE).max(limits::POOL_STEP_BYTES);
        Some(needed.max(bytes.saturating_sub(step)))
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
    /// A shrink that is running is cancelled once more than this is used.
    shrink_while_used_below: AtomicU64,
    /// Held while the pool is resized.
    resizing: Mutex<History>,
}

pub(super) struct History {
    shrunk: Option<Instant>,
    /// The pool does not shrink before.
    shrink_from: Instant,
    /// How often it could not shrink since it last did.
    failures: u32,
}

impl History {
    fn count_failure(&mut self) {
        // Ten minutes are reached long before.
        let rest = limits::POOL_SHRINK_AFTER * (1 << self.failures.min(8));
        self.shrink_from = Instant::now() + rest.min(limits::POOL_SHRINK_AGAIN);
        self.failures = self.failures.saturating_add(1);
    }
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
            tolerate_no_room(btrfs::relocate(&top, Relocate::Metadata))?;
        }
        let history = History { shrunk: None, shrink_from: Instant::now(), failures: 0 };
        Ok(Arc::new(Self {
            image: image::path(data_dir),
            mounted: mounted.to_owned(),
            filesystem_id,
            bounds,
            bytes: AtomicU64::new(bytes),
            shrink_while_used_below: AtomicU64::new(u64::MAX),
            resizing: Mutex::new(history),
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
        let mut history = match self.resizing.try_lock() {
            Ok(history) => history,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.cancel_shrink_for(&room),
        };
        if room.is_low(self.bytes(), self.bounds.min_bytes) {
            self.grow(&mut history)
        } else {
            Ok(())
        }
    }

    fn grow(&self, history: &mut History) -> io::Result<()> {
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
        let shrank_too_far =
            history.shrunk.is_some_and(|at| at.elapsed() < limits::POOL_SHRINK_AGAIN);
        let rest = match shrank_too_far {
            true => limits::POOL_SHRINK_AGAIN,
            false => limits::POOL_SHRINK_AFTER,
        };
        history.shrink_from = Instant::now() + rest;
        tracing::info!(from_mib = before >> 20, to_mib = target >> 20, "the btrfs pool has grown");
        Ok(())
    }

    fn cancel_shrink_for(&self, room: &Room) -> io::Result<()> {
        if room.used_bytes < self.shrink_while_used_below.load(Ordering::Relaxed) {
            return Ok(());
        }
        match btrfs::resize(open_dir(&self.mounted)?, Resize::Cancel) {
            // It has ended already.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            cancelled => cancelled,
        }
    }

    /// Gives space back to the disk, one step at a time, if the pool is much larger than it needs to be.
    pub fn give_back(&self) -> io::Result<()> {
        let Some(room) = Room::of(self.filesystem_id)? else { return Ok(()) };
        let mut history = self.alone();
        let before = self.bytes();
        if Instant::now() < history.shrink_from || !room.has_spare_metadata() {
            return Ok(());
        }
        let Some(target) = self.bounds.smaller(before, &room) else { return Ok(()) };
        let top = open_dir(&self.mounted)?;
        let target = target.max(btrfs::metadata_end(&top)?);
        if before.saturating_sub(target) < limits::POOL_GROW_MIN_BYTES {
            // If this does not help, it is not tried again soon.
            history.count_failure();
            return self.make_way(&top);
        }
        self.shrink_while_used_below
            .store(room.cancel_shrink_at(self.bounds.min_bytes), Ordering::Relaxed);
        let shrunk = btrfs::resize(&top, Resize::To(target));
        self.shrink_while_used_below.store(u64::MAX, Ordering::Relaxed);
        if let Err(error) = shrunk {
            history.count_failure();
            return tolerate_no_room(Err(error));
        }
        failpoint!("btrfs.shrink_after_filesystem");
        self.bytes.store(target, Ordering::Relaxed);
        (history.shrunk, history.failures) = (Some(Instant::now()), 0);
        let image = self.open_image()?;
        image.set_len(target)?;
        failpoint!("btrfs.shrink_after_file");
        fit_device(&image)?;
        tracing::info!(from_mib = before >> 20, to_mib = target >> 20, "the btrfs pool has shrunk");
        Ok(())
    }

    /// Moves metadata down from the end of the pool, after data has left room for it.
    fn make_way(&self, top: &OwnedFd) -> io::Result<()> {
        let sparse = Relocate::SparseData { chunks: limits::POOL_COMPACT_CHUNKS };
        tolerate_no_room(btrfs::relocate(top, sparse))?;
        match Room::of(self.filesystem_id)? {
            Some(room) if room.can_move_metadata(self.bytes()) => {
                tolerate_no_room(btrfs::relocate(top, Relocate::Metadata))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Nobody resizes the pool for as long as this is held.
    pub fn alone(&self) -> MutexGuard<'_, History> {
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

/// Moving data is given up if a writer needs the room, or if what was removed is not yet cleared away.
fn tolerate_no_room(moved: io::Result<()>) -> io::Result<()> {
    match moved {
        Err(error)
            if matches!(Errno::from_io_error(&error), Some(Errno::CANCELED | Errno::NOSPC)) =>
        {
            Ok(())
        }
        moved => moved,
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

fn fit_device(image: &File) -> io::Result<()> {
    match LoopDevice::find(image)? {
        Some(device) => device.refresh_size(),
        None => Ok(()),
    }
}

/// Makes the device, and the filesystem on it, as large as the file. Nothing happens if they are.
pub(super) fn reach(image: &File, pool: &OwnedFd) -> io::Result<()> {
    fit_device(image)?;
    failpoint!("btrfs.grow_after_device");
    btrfs::resize(pool, Resize::ToDevice)
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
    fn a_pool_shrinks_in_steps_to_what_it_needs() {
        let room = |used_bytes| Room {
            used_bytes,
            data_bytes: used_bytes,
            metadata_bytes: 128 * MIB,
            metadata_used_bytes: MIB,
            allocated_bytes: used_bytes + 128 * MIB,
        };
        assert_eq!(bounds(MUCH).smaller(80 * GIB, &room(0)), Some(70 * GIB));
        assert_eq!(bounds(MUCH).smaller(4 * GIB, &room(0)), Some(3 * GIB));
        assert_eq!(bounds(MUCH).smaller(2 * GIB, &room(0)), Some(1152 * MIB));
        assert_eq!(bounds(MUCH).smaller(GIB, &room(0)), None);
        assert_eq!(bounds(MUCH).smaller(4 * GIB, &room(2 * GIB)), None);
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
