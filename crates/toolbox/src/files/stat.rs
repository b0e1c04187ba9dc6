//! Metadata of a path.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Stat};

use crate::answer::{Entry, EntryKind, Failure};
use crate::request::RawPath;

pub fn stat(path: &RawPath) -> Result<Entry, Failure> {
    // By the older call: some sandboxes' kernels do not support a newer one.
    let found = rustix::fs::statat(CWD, path.as_path(), AtFlags::SYMLINK_NOFOLLOW);
    let found = found.map_err(|errno| Failure::from_errno(errno, path))?;
    let target = match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => read_link(path.as_path()),
        _ => None,
    };
    Ok(entry(path.clone(), &found, target))
}

pub fn entry(path: RawPath, found: &Stat, target: Option<RawPath>) -> Entry {
    Entry {
        path,
        kind: kind_of(FileType::from_raw_mode(found.st_mode)),
        size: u64::try_from(found.st_size).unwrap_or(0),
        mode: found.st_mode & 0o7777,
        uid: found.st_uid,
        gid: found.st_gid,
        modified_ms: milliseconds(found.st_mtime, found.st_mtime_nsec as i64),
        target,
    }
}

pub fn kind_of(kind: FileType) -> EntryKind {
    match kind {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        FileType::Fifo => EntryKind::Fifo,
        FileType::Socket => EntryKind::Socket,
        FileType::CharacterDevice => EntryKind::CharDevice,
        FileType::BlockDevice => EntryKind::BlockDevice,
        FileType::Unknown => EntryKind::Other,
    }
}

fn milliseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
}

/// `None` if it is gone by now.
fn read_link(path: &Path) -> Option<RawPath> {
    let target = rustix::fs::readlinkat(CWD, path, Vec::new()).ok()?;
    Some(RawPath::from_bytes(target.into_bytes()))
}
