//! Writes a file atomically: a new file beside it replaces it by one rename, with its mode and, if permitted, its
//! owner.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::answer::{Failure, FailureKind};

/// The mode of a new file, before the user's umask.
const NEW_FILE_MODE: u32 = 0o666;
const PERMISSIONS: u32 = 0o7777;
/// Prefix of temporary files.
pub const TEMPORARY: &str = ".sandkeep-";
/// How many temporary names are tried.
const NAMES_TRIED: u32 = 100;
/// How many links are followed to a file that does not exist yet.
const LINKS_MAX: usize = 40;

/// A file that is being written. Dropping it keeps the old one.
pub struct Replacement {
    target: PathBuf,
    beside: PathBuf,
    file: File,
    before: Option<Metadata>,
    state: ReplacementState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplacementState {
    Unfinished,
    InPlace,
}

/// Whether the file existed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    Absent,
    Present,
}

impl Replacement {
    /// Starts writing new content for `path`. If it is a symbolic link, its target is replaced, not the link.
    pub fn of(path: &Path) -> Result<Self, Failure> {
        let refused = |error: io::Error| Failure::from_io(&error, Some(path));
        let target = target(path)?;
        let before = match fs::metadata(&target) {
            Ok(metadata) => Some(regular(path, metadata)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(refused(error)),
        };
        // A file without write permission is not replaced, even if its directory would allow it. Permission is checked
        // without opening it, which watchers of the file would see as a change.
        if before.is_some() {
            let allowed = rustix::fs::access(&target, Access::WRITE_OK);
            allowed.map_err(|errno| Failure::from_errno(errno, path))?;
        }
        let (file, beside) = beside(&target).map_err(refused)?;
        Ok(Self { target, beside, file, before, state: ReplacementState::Unfinished })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| Failure::from_io(&error, Some(&self.target)))
    }

    /// Moves it into place, with this mode, or that of the old file. The content is on disk before it gets its name, so
    /// that after a crash the file is completely old or new.
    pub fn finish(mut self, mode: Option<u32>) -> Result<Before, Failure> {
        let done = self.try_finish(mode);
        done.map_err(|error| Failure::from_io(&error, Some(&self.target)))?;
        self.state = ReplacementState::InPlace;
        Ok(if self.before.is_some() { Before::Present } else { Before::Absent })
    }

    fn try_finish(&mut self, mode: Option<u32>) -> io::Result<()> {
        if let Some(before) = &self.before {
            // Only root can change owners; for other users the replaced file loses only its owner.
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
        if self.state == ReplacementState::Unfinished {
            // If this fails a temporary file is left; the earlier error matters more.
            let _ = fs::remove_file(&self.beside);
        }
    }
}

fn regular(path: &Path, metadata: Metadata) -> Result<Metadata, Failure> {
    if metadata.is_file() {
        return Ok(metadata);
    }
    let failure = if metadata.is_dir() {
        Failure::new(FailureKind::IsADirectory, "it is a directory, not a file")
    } else {
        Failure::new(FailureKind::NotRegular, "it is not a regular file")
    };
    Err(failure.at(path))
}

/// The end of a chain of links, even if nothing exists there yet.
fn target(path: &Path) -> Result<PathBuf, Failure> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(link) = fs::read_link(&path) else { return Ok(path) };
        path = path.parent().unwrap_or(Path::new("")).join(link);
    }
    Err(Failure::new(FailureKind::Invalid, "it leads through too many symbolic links").at(path))
}

/// A new, exclusive file in the same directory.
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
