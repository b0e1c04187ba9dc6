//! One sandbox's own directory.
//!
//! The required durability of `meta.json` follows from the other records. The end of the daemon never loses written
//! data, so no write needs a sync for that. After a power loss, when nothing runs any more, the registry's row, durable
//! before any side effect, says what existed, and a torn file is rewritten from it. So the file must be on disk only in
//! case the registry itself is lost:
//!
//! - `creating`: the content is synced before any caller learns that the sandbox exists, concurrently with everything
//!   that is created: nothing that is created before runs longer than the page cache lives;
//! - `ready`: written before any caller learns that the sandbox exists, and synced, including its name, right after:
//!   the answer need not wait for a second copy of what the registry has just made durable;
//! - `destroying`: never synced; its row is, and the file is about to be removed.

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

/// The state of a home.
#[derive(Debug)]
pub enum HomeState {
    Missing,
    /// A create ended before its metadata was in place: nothing else was created.
    Empty,
    /// It has content, but none that we can read.
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

    /// Creates the directory if necessary, and writes `meta`.
    pub fn create(&self, meta: &Meta) -> io::Result<()> {
        make_directory(&self.path)?;
        self.write(meta)
    }

    /// Replaces the metadata of an existing home.
    pub fn write(&self, meta: &Meta) -> io::Result<()> {
        debug_assert_eq!(meta.id, self.id, "a home holds its own sandbox's metadata");
        file::replace(&self.path, META, &meta.content())
    }

    /// Syncs the content of the metadata.
    pub fn sync_meta(&self) -> io::Result<()> {
        file::sync(&self.path.join(META))
    }

    /// Syncs everything that leads to the metadata: content, name, and the home's own name.
    pub fn sync(&self) -> io::Result<()> {
        self.sync_meta()?;
        file::sync(&self.path)?;
        self.path.parent().map_or(Ok(()), file::sync)
    }

    /// Records when the sandbox was last used. This is not part of the metadata: it changes often, is never synced, and
    /// may be missing.
    pub fn note_activity(&self, last: &Moment) -> io::Result<()> {
        let content = serde_json::to_vec(last).map_err(io::Error::other)?;
        file::replace(&self.path, ACTIVITY, &content)
    }

    /// When it was last used, if recorded.
    pub fn noted_activity(&self) -> Option<Moment> {
        let content = fs::read(self.path.join(ACTIVITY)).ok()?;
        serde_json::from_slice(&content).ok()
    }

    /// A second copy of the records of its snapshots, unsynced: the registry has the first.
    pub fn keep_snapshots_copy(&self, content: &[u8]) -> io::Result<()> {
        match file::replace(&self.path, SNAPSHOTS, content) {
            // There is no home to store it in.
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

    /// Only a completely empty home was certainly never finished: the metadata of another may have been removed by
    /// hand.
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

    /// Removes the directory with its content. `Ok` if it does not exist.
    pub fn remove(&self) -> io::Result<()> {
        // A concurrent writer may have added one more file meanwhile.
        match self.remove_once() {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => self.remove_once(),
            removed => removed,
        }
    }

    fn remove_once(&self) -> io::Result<()> {
        // The metadata goes last, so that after a crash the removal is still known as `destroying`.
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
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?
            } else {
                fs::remove_file(entry.path())?
            }
        }
        fs::remove_dir_all(&self.path)
    }
}

/// Creates the directory of a home. A runtime that stores something there may be faster than the writer of the
/// metadata, so an existing one is fine.
pub fn make_directory(home: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(home) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
