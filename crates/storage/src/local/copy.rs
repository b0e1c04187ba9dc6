//! Copies a tree completely: owners, modes, times, attributes, hard links and holes. The tree is not trusted: no link
//! is followed and no mount crossed. It must not change meanwhile.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat,
    chownat, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, futimens, ioctl_ficlone,
    linkat, mkdirat, mknodat, openat, readlinkat, statat, symlinkat, utimensat,
};
use rustix::io::Errno;

use super::unchanged::{Earlier, List, Shared};
use sandkeep_core::limits;
use sandkeep_tree::{Effort, OPAQUE, OVERLAY_ATTRIBUTES, copy_data, untrusted};

/// The purpose of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A layer. Sockets are left out, because nobody listens on them, and so are all overlay attributes but the one
    /// that hides entries below.
    Layer,
    /// The same tree in another place.
    Twin,
}

/// A copy in progress.
pub(super) struct Copy<'a> {
    purpose: Purpose,
    /// The earlier copy with unchanged files.
    earlier: Option<&'a Earlier>,
    /// Receives the list of copied files.
    list: Option<&'a mut List>,
    /// The root of the copy.
    top: OwnedFd,
    /// The first name of each file with several, by device and inode.
    linked: HashMap<(u64, u64), RelativePath>,
    effort: Effort,
}

/// The path of a file within a tree.
pub(super) type RelativePath = CString;

impl<'a> Copy<'a> {
    pub fn new(purpose: Purpose, to: OwnedFd, effort: Effort) -> Self {
        Self { purpose, earlier: None, list: None, top: to, linked: HashMap::new(), effort }
    }

    pub fn sharing(mut self, earlier: Option<&'a Earlier>, list: Option<&'a mut List>) -> Self {
        (self.earlier, self.list) = (earlier, list);
        self
    }

    /// Copies the content of `from`, and its own metadata, into the empty directory.
    pub fn run(mut self, from: OwnedFd) -> io::Result<()> {
        let mut open = vec![Level::new(from, self.top.try_clone()?, Vec::new())?];
        while let Some(level) = open.last_mut() {
            let Some((name, _)) = level.names.pop() else {
                // Last, because creating entries changes a directory's time.
                level.finish(self.purpose)?;
                open.pop();
                continue;
            };
            self.effort.spend(0)?;
            let below = self.copy(level, &name).map_err(|error| describe(&name, error))?;
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

    /// Copies one name; a directory is returned, to be traversed.
    fn copy(&mut self, level: &Level, name: &CStr) -> io::Result<Option<Level>> {
        let stat = statat(&level.from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return level.below(name, &stat).map(Some);
        }
        let place = level.place(name);
        if stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&(stat.st_dev, stat.st_ino)) {
                let (directory, first) = open_place(&self.top, first)?;
                linkat(directory, first, &level.to, name, AtFlags::empty())?;
                return Ok(None);
            }
            self.linked.insert((stat.st_dev, stat.st_ino), place.clone());
        }
        match kind {
            FileType::RegularFile => self.copy_file(level, name, &stat, &place)?,
            FileType::Symlink => {
                symlinkat(readlinkat(&level.from, name, Vec::new())?, &level.to, name)?;
                level.own(name, &stat)?;
            }
            FileType::Socket if self.purpose == Purpose::Layer => {}
            // The only devices are overlay whiteouts: sandboxes cannot create others.
            FileType::Fifo | FileType::CharacterDevice | FileType::Socket => {
                let mode = Mode::from_raw_mode(stat.st_mode);
                mknodat(&level.to, name, kind, mode, stat.st_rdev)?;
                level.own(name, &stat)?;
                // The umask restricts it.
                chmodat(&level.to, name, mode, AtFlags::empty())?;
            }
            FileType::BlockDevice | FileType::Directory | FileType::Unknown => {}
        }
        Ok(None)
    }

    fn copy_file(
        &mut self,
        level: &Level,
        name: &CStr,
        stat: &Stat,
        place: &RelativePath,
    ) -> io::Result<()> {
        let shared = match self.earlier {
            Some(earlier) => earlier.link(stat, &level.to, name)?,
            None => Shared::No,
        };
        if shared == Shared::No {
            level.copy_file(name, stat, self.purpose, &self.effort)?;
        }
        match &mut self.list {
            Some(list) => list.note(stat, place),
            None => Ok(()),
        }
    }
}

/// The parent directory of a path, and its last name. Paths of any length, because every step is one name.
pub(super) fn open_place(top: &OwnedFd, place: &CStr) -> io::Result<(OwnedFd, CString)> {
    let mut parts: Vec<&[u8]> = place.to_bytes().split(|byte| *byte == b'/').collect();
    let name = CString::new(parts.pop().unwrap_or_default())?;
    let mut directory = top.try_clone()?;
    for part in parts {
        directory = untrusted::open_dir(&directory, &CString::new(part)?)?;
    }
    Ok((directory, name))
}

fn describe(name: &CStr, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", name.to_string_lossy()))
}

/// A directory that is being copied.
struct Level {
    names: Vec<(CString, FileType)>,
    from: OwnedFd,
    to: OwnedFd,
    stat: Stat,
    /// Its path within the tree, with a trailing slash except for the root.
    path: Vec<u8>,
}

impl Level {
    fn new(from: OwnedFd, to: OwnedFd, path: Vec<u8>) -> io::Result<Self> {
        Ok(Self { names: untrusted::entries(&from)?, stat: fstat(&from)?, from, to, path })
    }

    fn place(&self, name: &CStr) -> RelativePath {
        let path = [&self.path, name.to_bytes()].concat();
        CString::new(path).expect("names of files hold no NUL")
    }

    fn below(&self, name: &CStr, stat: &Stat) -> io::Result<Self> {
        mkdirat(&self.to, name, Mode::RWXU)?;
        let path = [&self.path, name.to_bytes(), b"/"].concat();
        let opened = with_access(&self.from, name, stat, || untrusted::open_dir(&self.from, name))?;
        let mut below = Self::new(opened, untrusted::open_dir(&self.to, name)?, path)?;
        // As it was before it was opened.
        below.stat = *stat;
        Ok(below)
    }

    fn finish(&self, purpose: Purpose) -> io::Result<()> {
        give(&self.from, &self.to, &self.stat, purpose)
    }

    fn copy_file(
        &self,
        name: &CStr,
        stat: &Stat,
        purpose: Purpose,
        effort: &Effort,
    ) -> io::Result<()> {
        let quiet = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Must not block: a process inside may hold a lease, and does not release it while it is frozen.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | quiet;
        let open = || openat(&self.from, name, flags, Mode::empty());
        let from = with_access(&self.from, name, stat, open).map_err(untrusted::leased)?;
        if FileType::from_raw_mode(fstat(&from)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it changed while it was copied"));
        }
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | quiet;
        let to = openat(&self.to, name, new, Mode::RUSR | Mode::WUSR)?;
        // If the file system supports it, both share their data until one changes.
        match ioctl_ficlone(&to, &from) {
            Ok(()) => {}
            Err(_) => {
                let size_bytes = u64::try_from(stat.st_size).map_err(io::Error::other)?;
                copy_data(&from, &to, size_bytes, effort).map(drop)?;
            }
        }
        give(&from, &to, stat, purpose)
    }

    /// Owner and time of an entry without mode and attributes.
    fn own(&self, name: &CStr, stat: &Stat) -> io::Result<()> {
        let (uid, gid) = owner(stat);
        chownat(&self.to, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(utimensat(&self.to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// Opens an entry that its owner (us, if we are not root) must not read, by granting access for a moment.
fn with_access<T>(
    directory: &OwnedFd,
    name: &CStr,
    stat: &Stat,
    open: impl Fn() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    match open() {
        Err(Errno::ACCESS) => {
            let mode = Mode::from_raw_mode(stat.st_mode);
            chmodat(directory, name, mode | Mode::RUSR | Mode::XUSR, AtFlags::empty())?;
            let opened = open();
            chmodat(directory, name, mode, AtFlags::empty())?;
            opened
        }
        opened => opened,
    }
}

/// Gives a copy the metadata of the original. The order matters: changing the owner removes capabilities and set-id
/// bits.
fn give(from: impl AsFd, to: impl AsFd, stat: &Stat, purpose: Purpose) -> io::Result<()> {
    let (uid, gid) = owner(stat);
    fchown(&to, uid, gid)?;
    fchmod(&to, Mode::from_raw_mode(stat.st_mode))?;
    copy_attributes(&from, &to, purpose)?;
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

/// The attributes that a copy keeps: user attributes, ACLs, and capabilities. Overlay attributes about the layers below
/// are meaningless above other ones, except for the opaque mark.
fn is_kept(name: &str, purpose: Purpose) -> bool {
    match (name.starts_with(OVERLAY_ATTRIBUTES), purpose) {
        (true, Purpose::Layer) => name == OPAQUE,
        (true, Purpose::Twin) | (false, _) => {
            name.starts_with("user.")
                || name.starts_with("system.posix_acl_")
                || name == "security.capability"
        }
    }
}

fn copy_attributes(from: impl AsFd, to: impl AsFd, purpose: Purpose) -> io::Result<()> {
    let mut names = vec![0; limits::ATTRIBUTE_MAX_BYTES];
    let length = match flistxattr(&from, &mut names) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut value = vec![0; limits::ATTRIBUTE_MAX_BYTES];
    for name in names[..length].split(|byte| *byte == 0) {
        let Ok(name) = std::str::from_utf8(name) else { continue };
        if !is_kept(name, purpose) {
            continue;
        }
        let length = fgetxattr(&from, name, &mut value)?;
        fsetxattr(&to, name, &value[..length], XattrFlags::empty())?;
    }
    Ok(())
}
