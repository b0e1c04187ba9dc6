//! One sandbox's own directory.
//!
//! How durable `meta.json` is follows from who else knows. The end of the daemon takes nothing that
//! was written, so every write survives that without a sync. After a power cut, when nothing runs any
//! more, the row in the registry, durable before any side effect, says what there was, and a torn file
//! is written anew from it. So the file must be on disk only for the day when the registry itself is
//! lost:
//!
//! - `creating`: the content is synced before launch, beside the making of the volume, so that nothing
//!   ever runs whose owner is known to the page cache alone;
//! - `ready`: in place before anybody is told that the sandbox exists, and synced, name and all, right
//!   after: the answer need not wait for a second copy of what the registry has just made durable;
//! - `destroying`: never synced; its row is, and the file is about to go.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::meta::{Meta, Unreadable};
use super::{SANDBOXES, file};
use sandkeep_core::{Moment, SandboxId};

const META: &str = "meta.json";
const ACTIVITY: &str = "activity.json";
const SNAPSHOTS: &str = "snapshots.json";

/// The directory of one sandbox; it may or may not exist.
#[derive(Clone, Debug)]
pub struct Home {
    path: PathBuf,
    id: SandboxId,
    instance: String,
}

/// What a home says.
#[derive(Debug)]
pub enum HomeState {
    Missing,
    /// A create ended before its metadata was in place: nothing else was made.
    Empty,
    /// It holds something, but nothing we can read.
    Unreadable(Unreadable),
    Known(Box<Meta>),
}

impl Home {
    /// The home of a sandbox in the data directory of an instance.
    pub fn new(data: &Path, id: SandboxId, instance: String) -> Self {
        Self { path: data.join(SANDBOXES).join(id.as_str()), id, instance }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory, if it is not there, and writes `meta`.
    pub fn create(&self, meta: &Meta) -> io::Result<()> {
        make_directory(&self.path)?;
        self.write(meta)
    }

    /// Replaces the metadata of an existing home.
    pub fn write(&self, meta: &Meta) -> io::Result<()> {
        debug_assert_eq!(meta.id, self.id, "a home holds its own sandbox's metadata");
        file::replace(&self.path, META, &meta.content())
    }

    /// Puts the content of the metadata on disk.
    pub fn sync_meta(&self) -> io::Result<()> {
        file::sync(&self.path.join(META))
    }

    /// Puts all on disk that leads to the metadata: content, name, and the home's own name.
    pub fn sync(&self) -> io::Result<()> {
        self.sync_meta()?;
        file::sync(&self.path)?;
        self.path.parent().map_or(Ok(()), file::sync)
    }

    /// Notes down when the sandbox was last used. It is no part of the metadata: it changes often, is
    /// never synced, and may be missing.
    pub fn note_activity(&self, last: &Moment) -> io::Result<()> {
        let content = serde_json::to_vec(last).map_err(io::Error::other)?;
        file::replace(&self.path, ACTIVITY, &content)
    }

    /// When it was last used, as far as anybody noted it down.
    pub fn noted_activity(&self) -> Option<Moment> {
        let content = fs::read(self.path.join(ACTIVITY)).ok()?;
        serde_json::from_slice(&content).ok()
    }

    /// A second copy of what is recorded of its snapshots, unsynced: the registry has the first.
    pub fn keep_snapshots_copy(&self, content: &[u8]) -> io::Result<()> {
        match file::replace(&self.path, SNAPSHOTS, content) {
            // There is no home to keep it in.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            kept => kept,
        }
    }

    pub fn snapshots_copy(&self) -> Option<Vec<u8>> {
        fs::read(self.path.join(SNAPSHOTS)).ok()
    }

    pub fn read(&self) -> HomeState {
        match Meta::read(&self.path.join(META), &self.id, &self.instance) {
            Ok(meta) => HomeState::Known(Box::new(meta)),
            Err(Unreadable::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.without_meta()
            }
            Err(unreadable) => HomeState::Unreadable(unreadable),
        }
    }

    /// Only a home that holds nothing at all was certainly never finished: somebody may have
    /// removed the metadata of another by hand.
    fn without_meta(&self) -> HomeState {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return HomeState::Missing,
            Err(error) => return HomeState::Unreadable(Unreadable::Io(error)),
        };
        let temporary = file::temporary(META);
        for entry in entries {
            match entry {
                Ok(entry) if entry.file_name() == temporary.as_str() => {}
                Ok(_) => {
                    let missing = io::Error::new(io::ErrorKind::NotFound, "there is no meta.json");
                    return HomeState::Unreadable(Unreadable::Io(missing));
                }
                Err(error) => return HomeState::Unreadable(Unreadable::Io(error)),
            }
        }
        HomeState::Empty
    }

    /// Removes the directory and all in it. `Ok` if there is none.
    pub fn remove(&self) -> io::Result<()> {
        // Somebody who was writing to it a moment ago may have added a file meanwhile, once.
        match self.remove_once() {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => self.remove_once(),
            removed => removed,
        }
    }

    fn remove_once(&self) -> io::Result<()> {
        // The metadata goes last: a removal that a crash cuts short is still known as `destroying`.
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name() == META {
                continue;
            }
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        fs::remove_dir_all(&self.path)
    }
}

/// Makes the directory of a home. A runtime that keeps something there may be faster than whoever writes the
/// metadata, so one that is there is fine.
pub fn make_directory(home: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(home) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
