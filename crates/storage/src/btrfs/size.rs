//! The size of the pool follows its content: it starts small, grows before it is full, and gives back space that it has
//! not needed for a while ([`Balloon`]).
//!
//! All blocks of the image that can be written are allocated, so that a full host disk never becomes an I/O error
//! inside btrfs.
//!
//! - **Growing**: first the file (allocated and synced), then the loop device, then the file system. So the file system
//!   is never larger than its file, and a crash between two steps leaves a file with an unused tail: opening the
//!   storage grows the file system to the size of the file.
//! - A sandbox can write faster than the pool's health is requested, so a thread checks the free space every
//!   [`POOL_LOOK_INTERVAL`](limits::POOL_LOOK_INTERVAL). A writer near the end is slowed down by the kernel, which
//!   writes back dirty data before it returns ENOSPC. A single reservation (`fallocate`) of more than the free space
//!   cannot be foreseen and fails.
//! - btrfs divides its space into data chunks and metadata chunks. Data must not take all of it: without room for
//!   metadata nothing can be written, and the file system cannot even be resized.
//! - The file system never shrinks. If the kernel finds no place for metadata below the new end, it aborts the
//!   transaction, and the file system becomes read-only for all sandboxes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::fs::{FallocateFlags, fallocate};

use super::balloon::Balloon;
use super::pool::{Pool, open_dir};
use super::room::{Need, PoolSpace};
use super::{BtrfsOptions, image};
use crate::PoolHealth;
use sandkeep_core::{failpoint, limits};
use sandkeep_sys::btrfs;
use sandkeep_sys::loopdev::LoopDevice;

/// The minimum and maximum size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub min_bytes: u64,
    pub max_bytes: u64,
}

impl Bounds {
    /// `None` for a pool of a fixed size: the operator has configured a size and no maximum.
    pub fn of(options: &BtrfsOptions) -> Option<Self> {
        let max_bytes = match (options.image_max_bytes, options.image_bytes) {
            (Some(max), _) => max,
            (None, Some(_)) => return None,
            (None, None) => limits::POOL_GROWN_MAX_BYTES,
        };
        let min_bytes = options.image_bytes.unwrap_or(limits::POOL_START_BYTES.min(max_bytes));
        Some(Self { min_bytes, max_bytes })
    }

    /// The next size of a pool that needs room, as far as its maximum and the disk allow.
    fn larger(self, bytes: u64, disk_free_bytes: u64) -> u64 {
        let step = (bytes / limits::POOL_GROW_SHARE).max(limits::POOL_STEP_BYTES.min(bytes));
        bytes.saturating_add(step).min(self.largest(bytes, disk_free_bytes))
    }

    /// The largest possible size at present.
    fn largest(self, bytes: u64, disk_free_bytes: u64) -> u64 {
        let to_be_had = disk_free_bytes.saturating_sub(limits::POOL_HOST_RESERVE_BYTES);
        bytes.saturating_add(to_be_had).min(self.max_bytes).max(bytes)
    }
}

/// The size of a pool that can grow.
pub(super) struct Sizing {
    image: PathBuf,
    /// The pool's mount point. Opened for each resize: an open descriptor would prevent unmounting.
    mounted: PathBuf,
    filesystem_id: [u8; 16],
    bounds: Bounds,
    /// The size of the file system.
    bytes: AtomicU64,
    balloon: Balloon,
    /// How much of the file system was given back to the disk.
    given_bytes: AtomicU64,
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
        // A new file system has a few mebibytes of it, which a fast writer uses up before more is allocated.
        let few = |room: &PoolSpace| room.metadata_bytes < limits::POOL_METADATA_MIN_BYTES;
        if PoolSpace::of(filesystem_id)?
            .is_some_and(|room| few(&room) && room.can_move_metadata(bytes))
        {
            btrfs::relocate_metadata(&top)?;
        }
        let balloon = Balloon::of(mounted)?;
        let given_bytes = AtomicU64::new(balloon.bytes()?);
        Ok(Arc::new(Self {
            balloon,
            given_bytes,
            image: image::path(data_dir),
            mounted: mounted.to_owned(),
            filesystem_id,
            bounds,
            bytes: AtomicU64::new(bytes),
            resizing: Mutex::default(),
        }))
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The health of the pool if it took all the space that it can get now.
    pub fn grown(&self, health: PoolHealth) -> io::Result<PoolHealth> {
        let bytes = self.bytes().saturating_sub(self.given_bytes());
        let disk_free_bytes = PoolHealth::of(File::open(&self.image)?)?.free_bytes;
        let total_bytes = self.bounds.largest(bytes, disk_free_bytes);
        Ok(PoolHealth { total_bytes, free_bytes: health.free_bytes + (total_bytes - bytes) })
    }

    /// Grows the pool if it is getting full. Returns what it needed.
    pub fn keep_room(&self) -> io::Result<Need> {
        let Some(room) = PoolSpace::of(self.filesystem_id)? else { return Ok(Need::Nothing) };
        let _alone = self.alone();
        let need = room.need(self.bytes(), self.bounds.min_bytes);
        match need {
            Need::Data if self.given_bytes() > 0 => self.take_back()?,
            Need::Data | Need::Chunks => self.grow()?,
            Need::Less | Need::Nothing => {}
        }
        Ok(need)
    }

    /// Gives space back to the disk as long as there is more than will be needed soon.
    pub fn give_back(&self) -> io::Result<()> {
        let _alone = self.alone();
        let (image, pool) = (self.open_image()?, open_dir(&self.mounted)?);
        let before = self.given_bytes();
        while let Some(room) = PoolSpace::of(self.filesystem_id)?
            && room.need(self.bytes(), self.bounds.min_bytes) == Need::Less
            && self.bytes() - self.given_bytes() >= self.bounds.min_bytes + limits::POOL_PIECE_BYTES
            && self.balloon.inflate(&image, &pool)?
        {
            self.given_bytes.fetch_add(limits::POOL_PIECE_BYTES, Ordering::Relaxed);
        }
        let mib = (self.given_bytes() - before) >> 20;
        if mib > 0 {
            tracing::info!(mib, "the btrfs pool gave space back to the disk");
        }
        Ok(())
    }

    /// As much as the pool would grow by.
    fn take_back(&self) -> io::Result<()> {
        let image = self.open_image()?;
        let bytes = self.bytes() - self.given_bytes();
        let wanted = self.bounds.larger(bytes, PoolHealth::of(&image)?.free_bytes) - bytes;
        let wanted = wanted.min(self.given_bytes()) / limits::POOL_PIECE_BYTES;
        let wanted = wanted * limits::POOL_PIECE_BYTES;
        let taken = self.balloon.deflate(&image, &open_dir(&self.mounted)?, wanted)?;
        self.given_bytes.fetch_sub(taken, Ordering::Relaxed);
        if taken > 0 {
            tracing::info!(mib = taken >> 20, "the btrfs pool took space back from the disk");
        }
        Ok(())
    }

    fn given_bytes(&self) -> u64 {
        self.given_bytes.load(Ordering::Relaxed)
    }

    fn grow(&self) -> io::Result<()> {
        let image = self.open_image()?;
        let before = image.metadata()?.len();
        let mut target = before;
        // Otherwise an earlier resize was interrupted.
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

    /// The pool is not resized while this is held.
    pub fn alone(&self) -> MutexGuard<'_, ()> {
        self.resizing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_image(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(&self.image)
    }
}

/// The thread that checks the pool's free space. It ends when this is dropped.
pub(super) struct Watch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn of(pool: Arc<Pool>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let look_again = move || {
            stopped.recv_timeout(limits::POOL_LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout)
        };
        let thread =
            std::thread::Builder::new().name("pool-watch".to_owned()).spawn(move || {
                let mut said = None;
                let mut enough_since = Instant::now();
                let mut committed = Instant::now();
                while look_again() {
                    let kept = pool.keep_room().and_then(|need| {
                        if need != Need::Less {
                            enough_since = Instant::now();
                        }
                        match (need, &pool.sizing) {
                            // Removed data is free for others once the removal is committed.
                            (Need::Data, _)
                                if committed.elapsed() > limits::POOL_COMMIT_INTERVAL =>
                            {
                                committed = Instant::now();
                                pool.commit()
                            }
                            (Need::Less, Some(sizing))
                                if enough_since.elapsed() > limits::POOL_SPARE_FOR =>
                            {
                                sizing.give_back()
                            }
                            (Need::Data | Need::Chunks | Need::Less | Need::Nothing, _) => Ok(()),
                        }
                    });
                    let problem = kept.err().map(|error| error.to_string());
                    if let Some(error) = problem.as_ref().filter(|_| problem != said) {
                        tracing::warn!(
                            error,
                            "the size of the btrfs pool cannot follow its contents"
                        );
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
            // The thread has logged its errors itself.
            let _ = thread.join();
        }
    }
}

/// Allocates the file's new blocks, or none of them.
fn reserve(image: &File, bytes: u64, target: u64) -> io::Result<()> {
    let reserved = fallocate(image, FallocateFlags::empty(), bytes, target - bytes);
    if let Err(error) = reserved {
        image.set_len(bytes)?;
        return Err(error.into());
    }
    image.sync_all()
}

/// Grows the device, and its file system, to the size of the file. Does nothing if they have it.
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
