//! The image file of the pool. All its blocks are allocated from the start, so a full disk is detected when the pool is
//! created and not by a sandbox that writes; and it gets its name only when it is complete.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{BtrfsOptions, io_error, seed, unusable};
use crate::PoolHealth;
use crate::StorageError;
use sandkeep_core::limits;

pub(super) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("storage").join("btrfs.img")
}

/// The pool's image and the id of its file system.
pub(super) struct Image {
    pub file: File,
    pub filesystem_id: [u8; 16],
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It existed.
    Found,
    /// It is new and empty.
    Made,
}

/// Opens or creates the image.
pub(super) fn open(data_dir: &Path, options: &BtrfsOptions) -> Result<Image, StorageError> {
    let path = path(data_dir);
    let what = || format!("open {}", path.display());
    let (file, origin) = match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(file) => (file, Origin::Found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (make(data_dir, &path, options)?, Origin::Made)
        }
        Err(source) => return Err(io_error(what(), source)),
    };
    let id = seed::filesystem_id(&file).map_err(|source| io_error(what(), source))?;
    let filesystem_id =
        id.ok_or_else(|| unusable(format!("{} holds no btrfs filesystem", path.display())))?;
    Ok(Image { file, filesystem_id, origin })
}

fn make(data_dir: &Path, path: &Path, options: &BtrfsOptions) -> Result<File, StorageError> {
    let what = || format!("make {}", path.display());
    let storage = data_dir.join("storage");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&storage)
        .map_err(|source| io_error(what(), source))?;
    let directory = File::open(&storage).map_err(|source| io_error(what(), source))?;
    // A crash leaves the file with this name; the next attempt starts over, with its blocks.
    let unfinished = path.with_extension("img.new");
    let _ = std::fs::remove_file(&unfinished);
    check_size(data_dir, options)?;
    let size = match options.image_bytes {
        Some(bytes) => Size::Asked(bytes),
        None => Size::Chosen(start_bytes(&directory, options).map_err(|e| io_error(what(), e))?),
    };
    let made = fill(&unfinished, size);
    if made.is_err() {
        // Its blocks should be freed. If that fails too, the first error is reported.
        let _ = std::fs::remove_file(&unfinished);
    }
    let file = made?;
    std::fs::rename(&unfinished, path)
        .and_then(|()| directory.sync_all())
        .map_err(|source| io_error(what(), source))?;
    Ok(file)
}

/// Whether a pool of the configured size fits this disk.
pub(super) fn check_size(data_dir: &Path, options: &BtrfsOptions) -> Result<(), StorageError> {
    let Some(bytes) = options.image_bytes else { return Ok(()) };
    let free_bytes = File::open(data_dir)
        .and_then(|directory| Ok(PoolHealth::of(directory)?.free_bytes))
        .map_err(|source| io_error(format!("look at {}", data_dir.display()), source))?;
    if (limits::POOL_MIN_BYTES..=free_bytes).contains(&bytes) {
        return Ok(());
    }
    let [asked, min, free] = [bytes, limits::POOL_MIN_BYTES, free_bytes].map(|bytes| bytes >> 20);
    Err(unusable(format!(
        "a pool of {asked} MiB cannot be had; choose at least {min} MiB and at most the {free} MiB that are free"
    )))
}

/// The size of a pool, and who chose it.
#[derive(Clone, Copy)]
enum Size {
    Asked(u64),
    Chosen(u64),
}

impl Size {
    fn bytes(self) -> u64 {
        match self {
            Self::Asked(bytes) | Self::Chosen(bytes) => bytes,
        }
    }

    /// If we chose the size, another storage can be used; an operator who chose it gets the error.
    fn no_space(self, directory: &Path) -> StorageError {
        let what = format!("a pool of {} MiB in {}", self.bytes() >> 20, directory.display());
        match self {
            Self::Asked(_) => io_error(format!("make {what}"), Errno::NOSPC.into()),
            Self::Chosen(_) => unusable(format!("there is no space for {what}; free some")),
        }
    }
}

/// A new pool is small: it grows on demand.
fn start_bytes(directory: &File, options: &BtrfsOptions) -> io::Result<u64> {
    let share = PoolHealth::of(directory)?.free_bytes / limits::POOL_START_SHARE;
    let most = options.image_max_bytes.unwrap_or(u64::MAX).min(limits::POOL_START_BYTES);
    Ok(share.min(most).max(limits::POOL_MIN_BYTES))
}

fn fill(path: &Path, size: Size) -> Result<File, StorageError> {
    let what = || format!("make {}", path.display());
    let file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| io_error(what(), source))?;
    fallocate(&file, FallocateFlags::empty(), 0, size.bytes()).map_err(|error| match error {
        Errno::NOSPC => size.no_space(path.parent().unwrap_or(path)),
        Errno::OPNOTSUPP => {
            unusable(format!("the filesystem of {} cannot reserve space", path.display()))
        }
        error => io_error(what(), error.into()),
    })?;
    seed::write(&file).and_then(|()| file.sync_all()).map_err(|source| io_error(what(), source))?;
    Ok(file)
}

const _: () = assert!(limits::POOL_MIN_BYTES >= seed::SEED_BYTES);
