//! Gives a pool's space back to the disk without shrinking the pool.
//!
//! ```text
//! <data>/storage/btrfs/balloon/<number>    a file of `POOL_PIECE_BYTES` that is never read or written
//! ```
//!
//! A piece occupies space that no sandbox uses, and the image has a hole in its place. There are no other holes, so
//! everything that a sandbox may write to always has its blocks, even while no daemon runs: a full disk never becomes
//! an I/O error.
//!
//! - **Inflating**: first the file (committed), then the hole. **Deflating**: first the blocks (synced), then the file
//!   is removed. A crash between two steps leaves a piece whose blocks exist, which occupies no more than before.
//! - The kernel moves such a file only in a balance of data, which we never start.

use std::fs::{DirBuilder, File};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

use sandkeep_core::{failpoint, limits};
use sandkeep_sys::btrfs::{self, places::places};

const PART_BYTES: u64 = limits::POOL_PIECE_BYTES / 8;

pub(super) struct Balloon {
    pieces: PathBuf,
}

impl Balloon {
    pub fn of(mounted: &Path) -> io::Result<Self> {
        let pieces = mounted.join("balloon");
        DirBuilder::new().recursive(true).mode(0o700).create(&pieces)?;
        Ok(Self { pieces })
    }

    /// How much of the pool is given back.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.numbers()?.len() as u64 * limits::POOL_PIECE_BYTES)
    }

    /// Gives a piece of the pool back to the disk. `false` if the pool has none to give.
    pub fn inflate(&self, image: &File, pool: &OwnedFd) -> io::Result<bool> {
        let path = self.piece(self.numbers()?.into_iter().max().map_or(0, |last| last + 1));
        let piece = File::create_new(&path)?;
        // The kernel would rather allocate a new chunk than put a large extent into the gaps of existing ones.
        let mut parts = (0..limits::POOL_PIECE_BYTES).step_by(PART_BYTES as usize);
        let taken =
            parts.try_for_each(|from| fallocate(&piece, FallocateFlags::empty(), from, PART_BYTES));
        if let Err(error) = taken {
            std::fs::remove_file(&path)?;
            return match error {
                rustix::io::Errno::NOSPC => Ok(false),
                error => Err(error.into()),
            };
        }
        btrfs::commit(pool)?;
        failpoint!("btrfs.inflate_after_file");
        punch(image, &places(&piece)?)?;
        failpoint!("btrfs.inflate_after_holes");
        Ok(true)
    }

    /// Takes pieces of this total size back from the disk, as far as they exist; nothing if the disk lacks the space.
    /// Returns the size taken back.
    pub fn deflate(&self, image: &File, pool: &OwnedFd, bytes: u64) -> io::Result<u64> {
        let wanted =
            usize::try_from(bytes.div_ceil(limits::POOL_PIECE_BYTES)).unwrap_or(usize::MAX);
        let numbers: Vec<u64> = self.numbers()?.into_iter().take(wanted).collect();
        if numbers.is_empty() {
            return Ok(0);
        }
        let mut blocks = Vec::new();
        for number in &numbers {
            blocks.extend(places(File::open(self.piece(*number))?)?);
        }
        let filled = blocks.iter().try_for_each(|place| {
            fallocate(image, FallocateFlags::empty(), place.start, place.end - place.start)
        });
        if let Err(error) = filled {
            punch(image, &blocks)?;
            return Err(error.into());
        }
        image.sync_all()?;
        failpoint!("btrfs.deflate_after_blocks");
        numbers.iter().try_for_each(|number| std::fs::remove_file(self.piece(*number)))?;
        btrfs::commit(pool)?;
        Ok(numbers.len() as u64 * limits::POOL_PIECE_BYTES)
    }

    fn piece(&self, number: u64) -> PathBuf {
        self.pieces.join(number.to_string())
    }

    fn numbers(&self) -> io::Result<Vec<u64>> {
        let names = std::fs::read_dir(&self.pieces)?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }
}

fn punch(image: &File, places: &[Range<u64>]) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(places
        .iter()
        .try_for_each(|place| fallocate(image, flags, place.start, place.end - place.start))?)
}
