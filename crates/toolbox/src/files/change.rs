//! Small changes: directories, names, modes, and removing.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::read::open_regular;
use super::replacement::Replacement;
use super::stat::stat;
use super::write::make_parents;
use crate::answer::{Entry, Failure, FailureKind};
use crate::request::{ChangeMode, MakeDirectory, MoveEntry, Overwrite, Parents, RawPath, Reach};
use crate::wire::DATA_MAX;

const NEW_DIRECTORY_MODE: u32 = 0o777;
const PERMISSIONS: u32 = 0o7777;

pub fn remove(path: &RawPath, reach: Reach) -> Result<(), Failure> {
    let failure = |error: io::Error| Failure::from_io(&error, Some(path.as_path()));
    let found = fs::symlink_metadata(path).map_err(failure)?;
    if is_root(path.as_path()) {
        let message = "the root of the sandbox cannot be deleted";
        return Err(Failure::new(FailureKind::Invalid, message).at(path));
    }
    let removed = match (found.is_dir(), reach) {
        (false, _) => fs::remove_file(path),
        (true, Reach::One) => fs::remove_dir(path),
        (true, Reach::Tree) => fs::remove_dir_all(path),
    };
    removed.map_err(failure)
}

fn is_root(path: &Path) -> bool {
    fs::canonicalize(path).is_ok_and(|path| path == Path::new("/"))
}

pub fn make_directory(request: &MakeDirectory) -> Result<Entry, Failure> {
    let path = request.path.as_path();
    make_parents(path, request.parents)?;
    let mode = request.mode.unwrap_or(NEW_DIRECTORY_MODE) & PERMISSIONS;
    let made = fs::DirBuilder::new().mode(mode).create(path);
    match (made, request.parents) {
        (Err(error), Parents::Make)
            if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        (made, _) => made.map_err(|error| Failure::from_io(&error, Some(path)))?,
    }
    if let Some(mode) = request.mode {
        // The requested mode, not what the umask leaves of it.
        set_mode(path, mode)?;
    }
    stat(&request.path)
}

pub fn move_entry(request: &MoveEntry) -> Result<Entry, Failure> {
    let (from, to) = (request.from.as_path(), request.to.as_path());
    fs::symlink_metadata(from).map_err(|error| Failure::from_io(&error, Some(from)))?;
    make_parents(to, request.parents)?;
    match rename(from, to, request.overwrite) {
        Ok(()) => {}
        Err(Errno::XDEV) => move_between(request)?,
        Err(errno) => return Err(Failure::from_errno(errno, to)),
    }
    stat(&request.to)
}

fn rename(from: &Path, to: &Path, overwrite: Overwrite) -> Result<(), Errno> {
    match overwrite {
        Overwrite::Allowed => rustix::fs::rename(from, to),
        Overwrite::Refused => {
            match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
                // A kernel or file system that cannot do both atomically: one after the other.
                Err(Errno::INVAL | Errno::NOSYS) if fs::symlink_metadata(to).is_ok() => {
                    Err(Errno::EXIST)
                }
                Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(from, to),
                done => done,
            }
        }
    }
}

/// Across file systems: a file is copied and then removed; moving a directory is refused.
fn move_between(request: &MoveEntry) -> Result<(), Failure> {
    let to = request.to.as_path();
    if request.overwrite == Overwrite::Refused && fs::symlink_metadata(to).is_ok() {
        return Err(Failure::from_errno(Errno::EXIST, to));
    }
    let (mut file, found) = open_regular(&request.from).map_err(|_| {
        let message = "only regular files can be moved between filesystems; copy it with a command";
        Failure::new(FailureKind::Unsupported, message).at(&request.from)
    })?;
    let mut replacement = Replacement::of(to)?;
    let mut buffer = vec![0; DATA_MAX];
    loop {
        let count = io::Read::read(&mut file, &mut buffer);
        match count.map_err(|error| Failure::from_io(&error, Some(request.from.as_path())))? {
            0 => break,
            count => replacement.write(&buffer[..count])?,
        }
    }
    replacement.finish(Some(found.st_mode & PERMISSIONS))?;
    fs::remove_file(&request.from)
        .map_err(|error| Failure::from_io(&error, Some(request.from.as_path())))
}

pub fn change_mode(request: &ChangeMode) -> Result<Entry, Failure> {
    set_mode(request.path.as_path(), request.mode)?;
    if request.reach == Reach::Tree {
        change_beneath(request.path.as_path(), request.mode)?;
    }
    stat(&request.path)
}

/// Links have no mode of their own, and their targets are not below.
fn change_beneath(directory: &Path, mode: u32) -> Result<(), Failure> {
    let failure = |error: io::Error| Failure::from_io(&error, Some(directory));
    if !fs::symlink_metadata(directory).map_err(failure)?.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(directory).map_err(failure)? {
        let entry = entry.map_err(failure)?;
        let kind = entry.file_type().map_err(failure)?;
        if !kind.is_symlink() {
            set_mode(&entry.path(), mode)?;
        }
        if kind.is_dir() {
            change_beneath(&entry.path(), mode)?;
        }
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<(), Failure> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode & PERMISSIONS))
        .map_err(|error| Failure::from_io(&error, Some(path)))
}
