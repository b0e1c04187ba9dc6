//! Writing a file whole or not at all: a new file beside it takes its place by one rename, with its mode and, as far
//! as that is allowed, its owner.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::answer::{Failure, FailureKind};

/// What a new file may be read and written by, before the user's own mask.
const NEW_FILE_MODE: u32 = 0o666;
const PERMISSIONS: u32 = 0o7777;
/// What the names of files begin with that are not in their place yet.
pub const TEMPORARY: &str = ".sandkeep-";
/// How many names are tried for the file beside.
const NAMES_TRIED: u32 = 100;
/// How many links are followed to a file that is not there yet.
const LINKS_MAX: usize = 40;

/// A file that is being written. Dropping it leaves what was there before.
pub struct Replacement {
    target: PathBuf,
    beside: PathBuf,
    file: File,
    before: Option<Metadata>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unfinished,
    InPlace,
}

/// Whether there was a file before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    Absent,
    Present,
}

impl Replacement {
    /// Begins a new content for `path`. What a symbolic link leads to is replaced, not the link.
    pub fn of(path: &Path) -> Result<Self, Failure> {
        let refused = |error: io::Error| Failure::from_io(&error, Some(path));
        let target = target(path)?;
        let before = match fs::metadata(&target) {
            Ok(metadata) => Some(regular(path, metadata)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(refused(error)),
        };
        // A file that may not be written to is not replaced either, though its directory would allow it. It is asked
        // without opening it, which whoever watches the file would take for a change.
        if before.is_some() {
            let allowed = rustix::fs::access(&target, Access::WRITE_OK);
            allowed.map_err(|errno| Failure::from_errno(errno, path))?;
        }
        let (file, beside) = beside(&target).map_err(refused)?;
        Ok(Self { target, beside, file, before, state: State::Unfinished })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| Failure::from_io(&error, Some(&self.target)))
    }

    /// Puts it in its place, with this mode, or that of the file before. The content is on the disk before it gets
    /// its name, so that a crash leaves the old one or the new one.
    pub fn finish(mut self, mode: Option<u32>) -> Result<Before, Failure> {
        let done = self.try_finish(mode);
        done.map_err(|error| Failure::from_io(&error, Some(&self.target)))?;
        self.state = State::InPlace;
        Ok(if self.before.is_some() { Before::Present } else { Before::Absent })
    }

    fn try_finish(&mut self, mode: Option<u32>) -> io::Result<()> {
        if let Some(before) = &self.before {
            // Only root can give a file away; what another user's file loses by that is its owner alone.
            let _ = fchown(&self.file, Some(before.uid()), Some(before.gid()));
        }
        let mode = mode.or(self.before.as_ref().map(MetadataExt::mode));
        if let Some(mode) = mode {
            self.file.set_permissions(Permissions::from_mode(mode & PERMISSIONS))?;
        }
        self.file.sync_data()?;
        fs::rename(&self.beside, &self.target)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if self.state == State::Unfinished {
            // What is left otherwise is a file of ours, and whatever went wrong before matters more.
            let _ = fs::remove_file(&self.beside);
        }
    }
}

fn regular(path: &Path, metadata: Metadata) -> Result<Metadata, Failure> {
    if metadata.is_file() {
        return Ok(metadata);
    }
    let failure = match metadata.is_dir() {
        true => Failure::new(FailureKind::IsADirectory, "it is a directory, not a file"),
        false => Failure::new(FailureKind::NotRegular, "it is not a regular file"),
    };
    Err(failure.at(path))
}

/// Where a chain of links ends, also where nothing is there yet.
fn target(path: &Path) -> Result<PathBuf, Failure> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(link) = fs::read_link(&path) else { return Ok(path) };
        path = path.parent().unwrap_or(Path::new("")).join(link);
    }
    Err(Failure::new(FailureKind::Invalid, "it leads through too many symbolic links").at(path))
}

/// A new file in the same directory that nobody else has.
fn beside(target: &Path) -> io::Result<(File, PathBuf)> {
    if target.file_name().is_none() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    for attempt in 0..NAMES_TRIED {
        let path = target.with_file_name(format!("{TEMPORARY}{}-{attempt}", std::process::id()));
        let opened =
            OpenOptions::new().write(true).create_new(true).mode(NEW_FILE_MODE).open(&path);
        match opened {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (file, path)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
