//! A tree copied with all that a layer keeps: owners, modes, times, attributes, hard links and holes.
//! Who made the tree is not trusted: no link is followed and no mount crossed. It must not change
//! meanwhile. A socket is not copied, because nothing can be done with one that nobody listens on.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags,
    chownat, copy_file_range, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, ftruncate,
    futimens, ioctl_ficlone, linkat, mkdirat, mknodat, openat, readlinkat, seek, statat, symlinkat,
    utimensat,
};
use rustix::io::Errno;

use crate::limits;
use crate::storage::{OPAQUE, OVERLAY_ATTRIBUTES, tree};

/// Copies all that is in `from` into the empty directory `to`, and what `from` itself is.
pub fn tree(from: OwnedFd, to: OwnedFd) -> io::Result<()> {
    let mut copied = Copied::default();
    let mut open = vec![Level::new(from, to)?];
    while let Some(level) = open.last_mut() {
        let Some((name, _)) = level.names.pop() else {
            // Last, because whatever is made in a directory changes its time.
            level.finish()?;
            open.pop();
            continue;
        };
        let below = level.copy(&name, &mut copied).map_err(|error| describe(&name, error))?;
        if let Some(below) = below {
            if open.len() >= limits::WALK_DEPTH_MAX {
                let max = limits::WALK_DEPTH_MAX;
                return Err(io::Error::other(format!(
                    "its directories are nested deeper than {max}"
                )));
            }
            open.push(below);
        }
    }
    Ok(())
}

fn describe(name: &CStr, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", name.to_string_lossy()))
}

/// Where the first name of a file with several is, by device and inode.
#[derive(Default)]
struct Copied(HashMap<(u64, u64), (OwnedFd, CString)>);

/// A directory that is being copied.
struct Level {
    names: Vec<(CString, FileType)>,
    from: OwnedFd,
    to: OwnedFd,
    stat: Stat,
}

impl Level {
    fn new(from: OwnedFd, to: OwnedFd) -> io::Result<Self> {
        Ok(Self { names: tree::entries(&from)?, stat: fstat(&from)?, from, to })
    }

    fn finish(&self) -> io::Result<()> {
        give(&self.from, &self.to, &self.stat)
    }

    /// Copies one name; a directory is answered with, to be gone through.
    fn copy(&self, name: &CStr, copied: &mut Copied) -> io::Result<Option<Self>> {
        let stat = statat(&self.from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            mkdirat(&self.to, name, Mode::RWXU)?;
            let below = (tree::open_dir(&self.from, name)?, tree::open_dir(&self.to, name)?);
            return Level::new(below.0, below.1).map(Some);
        }
        if stat.st_nlink > 1 {
            if let Some((dir, first)) = copied.0.get(&(stat.st_dev, stat.st_ino)) {
                linkat(dir, first, &self.to, name, AtFlags::empty())?;
                return Ok(None);
            }
            let place = (self.to.try_clone()?, name.to_owned());
            copied.0.insert((stat.st_dev, stat.st_ino), place);
        }
        match kind {
            FileType::RegularFile => self.copy_file(name, &stat)?,
            FileType::Symlink => {
                symlinkat(readlinkat(&self.from, name, Vec::new())?, &self.to, name)?;
                self.own(name, &stat)?;
            }
            // Of devices there is only the mark by which an overlay hides a name: nobody inside makes others.
            FileType::Fifo | FileType::CharacterDevice => {
                let mode = Mode::from_raw_mode(stat.st_mode);
                mknodat(&self.to, name, kind, mode, stat.st_rdev)?;
                self.own(name, &stat)?;
            }
            FileType::Socket | FileType::BlockDevice | FileType::Directory | FileType::Unknown => {}
        }
        Ok(None)
    }

    fn copy_file(&self, name: &CStr, stat: &Stat) -> io::Result<()> {
        let quiet = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = openat(&self.from, name, OFlags::RDONLY | quiet, Mode::empty())?;
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | quiet;
        let to = openat(&self.to, name, new, Mode::RUSR | Mode::WUSR)?;
        // Where the filesystem can, both share what they hold until one changes.
        match ioctl_ficlone(&to, &from) {
            Ok(()) => {}
            Err(_) => copy_data(&from, &to, stat.st_size)?,
        }
        give(&from, &to, stat)
    }

    /// Owner and time of what has neither mode nor attributes of its own.
    fn own(&self, name: &CStr, stat: &Stat) -> io::Result<()> {
        let (uid, gid) = owner(stat);
        chownat(&self.to, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(utimensat(&self.to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// Gives a copy all that the original has besides what it holds. The order matters: a change of owner
/// takes capabilities and the bits for another's identity away.
fn give(from: impl AsFd, to: impl AsFd, stat: &Stat) -> io::Result<()> {
    let (uid, gid) = owner(stat);
    fchown(&to, uid, gid)?;
    fchmod(&to, Mode::from_raw_mode(stat.st_mode))?;
    copy_attributes(&from, &to)?;
    Ok(futimens(&to, &times(stat))?)
}

fn owner(stat: &Stat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

fn times(stat: &Stat) -> Timestamps {
    let at = |tv_sec: i64, tv_nsec: u64| Timespec { tv_sec, tv_nsec: tv_nsec as _ };
    Timestamps {
        last_access: at(stat.st_atime as _, stat.st_atime_nsec as _),
        last_modification: at(stat.st_mtime as _, stat.st_mtime_nsec as _),
    }
}

/// Only what is there is copied, so holes stay holes.
fn copy_data(from: &OwnedFd, to: &OwnedFd, size: i64) -> io::Result<()> {
    let size = u64::try_from(size).map_err(io::Error::other)?;
    ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = seek(from, SeekFrom::Hole(start))?;
        copy_range(from, to, start, end)?;
        at = end;
    }
    Ok(())
}

fn copy_range(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> io::Result<()> {
    let (mut at_from, mut at_to) = (start, start);
    while at_from < end {
        let left = usize::try_from(end - at_from).unwrap_or(usize::MAX);
        if copy_file_range(from, Some(&mut at_from), to, Some(&mut at_to), left)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// The attributes that a layer keeps: those of users, lists of access rights, and capabilities. What an
/// overlay noted down about the layers below means nothing in another place, but that it hides them.
fn is_kept(name: &str) -> bool {
    match name.starts_with(OVERLAY_ATTRIBUTES) {
        true => name == OPAQUE,
        false => {
            name.starts_with("user.")
                || name.starts_with("system.posix_acl_")
                || name == "security.capability"
        }
    }
}

fn copy_attributes(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let mut names = vec![0; limits::ATTRIBUTE_MAX_BYTES];
    let length = match flistxattr(&from, &mut names) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut value = vec![0; limits::ATTRIBUTE_MAX_BYTES];
    for name in names[..length].split(|byte| *byte == 0) {
        let Ok(name) = std::str::from_utf8(name) else { continue };
        if !is_kept(name) {
            continue;
        }
        let length = fgetxattr(&from, name, &mut value)?;
        fsetxattr(&to, name, &value[..length], XattrFlags::empty())?;
    }
    Ok(())
}
