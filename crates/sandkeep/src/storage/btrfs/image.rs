//! The file that holds the pool. It has all its blocks from the start, so a full disk is found when
//! the pool is made and not by a sandbox that writes; and it appears under its name only when whole.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{BtrfsOptions, io_error, seed, unusable};
use crate::limits;
use crate::storage::{StorageError, tree};

pub(super) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("storage").join("btrfs.img")
}

/// The pool's image and the id of the filesystem in it.
pub(super) struct Image {
    pub file: File,
    pub filesystem_id: [u8; 16],
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It was there.
    Found,
    /// It is new, so there is nothing in it.
    Made,
}

/// Opens the image, or makes it.
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
    let size_bytes = match options.image_bytes {
        Some(bytes) if bytes < limits::POOL_MIN_BYTES => {
            let (min, mb) = (limits::POOL_MIN_BYTES >> 20, bytes >> 20);
            return Err(unusable(format!(
                "a pool of {mb} MiB is too small; use {min} MiB or more"
            )));
        }
        Some(bytes) => bytes,
        None => default_bytes(&directory).map_err(|source| io_error(what(), source))?,
    };
    // A crash leaves the file under this name; the next attempt begins anew.
    let unfinished = path.with_extension("img.new");
    let made = fill(&unfinished, size_bytes);
    if made.is_err() {
        // Its blocks are wanted back. If that fails too, the first error is the one to tell.
        let _ = std::fs::remove_file(&unfinished);
    }
    let file = made?;
    std::fs::rename(&unfinished, path)
        .and_then(|()| directory.sync_all())
        .map_err(|source| io_error(what(), source))?;
    Ok(file)
}

fn default_bytes(directory: &File) -> io::Result<u64> {
    let quarter = tree::health(directory)?.free_bytes / 4;
    Ok(quarter.clamp(limits::POOL_MIN_BYTES, limits::POOL_MAX_BYTES))
}

fn fill(path: &Path, size_bytes: u64) -> Result<File, StorageError> {
    let what = || format!("make {}", path.display());
    let file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| io_error(what(), source))?;
    fallocate(&file, FallocateFlags::empty(), 0, size_bytes).map_err(|error| match error {
        Errno::NOSPC => unusable(format!(
            "there is no space for a pool of {} MiB in {}; free some, or choose a smaller one",
            size_bytes >> 20,
            path.parent().unwrap_or(path).display()
        )),
        Errno::OPNOTSUPP => {
            unusable(format!("the filesystem of {} cannot reserve space", path.display()))
        }
        error => io_error(what(), error.into()),
    })?;
    seed::write(&file).and_then(|()| file.sync_all()).map_err(|source| io_error(what(), source))?;
    Ok(file)
}

const _: () = assert!(limits::POOL_MIN_BYTES >= seed::SEED_BYTES);
