//! The target directory of an archive. Every component of a path is opened separately, below the one before, and never
//! through a symbolic link.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;

use crate::answer::{Failure, FailureKind};
use crate::files::replacement::TEMPORARY;
use crate::wire::DATA_MAX;

/// Zero runs of this size become holes.
const HOLE_BYTES: usize = 64 * 1024;

/// An entry's metadata in an archive.
pub struct Stamp {
    pub mode: u32,
    pub owner: Option<(u32, u32)>,
    pub modified: u64,
}

pub struct UnpackTarget {
    root: OwnedFd,
    pub(super) shown: PathBuf,
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl UnpackTarget {
    pub fn open(root: &Path) -> Result<Self, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(root, flags, Mode::empty());
        let opened = opened.map_err(|errno| Failure::from_errno(errno, root))?;
        Ok(Self { root: opened, shown: root.to_owned() })
    }

    pub(super) fn failure(&self, name: &Path) -> impl Fn(Errno) -> Failure {
        let path = self.shown.join(name);
        move |errno| match errno {
            Errno::LOOP => {
                let message =
                    "the way to it is a symbolic link, which an archive does not lead through";
                Failure::new(FailureKind::Invalid, message).at(&path)
            }
            errno => Failure::from_errno(errno, &path),
        }
    }

    /// The parent directory of an entry, created if missing, and its name there.
    pub(super) fn above(&self, name: &Path) -> Result<(OwnedFd, OsString), Failure> {
        let last = name.file_name().unwrap_or(OsStr::new(".")).to_owned();
        Ok((self.enter(name.parent().unwrap_or(Path::new("")))?, last))
    }

    pub(super) fn duplicate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.root, 3)
    }

    fn enter(&self, name: &Path) -> Result<OwnedFd, Failure> {
        let failure = self.failure(name);
        let mut at = self.duplicate().map_err(&failure)?;
        for part in name.iter() {
            let opened = match rustix::fs::openat(&at, part, DIRECTORY, Mode::empty()) {
                Err(Errno::NOENT) => {
                    rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(0o777)).map_err(&failure)?;
                    rustix::fs::openat(&at, part, DIRECTORY, Mode::empty())
                }
                // The kernel does not say which of both it is.
                Err(Errno::NOTDIR) if is_link(at.as_fd(), part) => Err(Errno::LOOP),
                opened => opened,
            };
            at = opened.map_err(&failure)?;
        }
        Ok(at)
    }

    pub fn directory(&self, name: &Path) -> Result<(), Failure> {
        self.enter(name).map(drop)
    }

    /// A new file, replacing whatever had the name. Returns its size.
    pub fn file(
        &self,
        name: &Path,
        (content, size): (&mut impl Read, u64),
        stamp: &Stamp,
    ) -> Result<u64, Failure> {
        let (above, last) = self.above(name)?;
        let failure = self.failure(name);
        let beside = OsString::from(format!("{TEMPORARY}{}", std::process::id()));
        let _ = rustix::fs::unlinkat(&above, &beside, AtFlags::empty());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&above, &beside, flags, Mode::from_raw_mode(0o600));
        let mut file = File::from(made.map_err(&failure)?);
        let filled = fill(&mut file, content, size)
            .map_err(|error| super::unread(&error, &self.shown.join(name)))
            .and_then(|len| {
                stamp.put_on(&file).map_err(&failure)?;
                rustix::fs::renameat(&above, &beside, &above, &last).map_err(&failure)?;
                Ok(len)
            });
        if filled.is_err() {
            let _ = rustix::fs::unlinkat(&above, &beside, AtFlags::empty());
        }
        filled
    }

    pub fn symlink(&self, name: &Path, target: &Path, stamp: &Stamp) -> Result<(), Failure> {
        let (above, last) = self.above(name)?;
        let failure = self.failure(name);
        clear(above.as_fd(), &last).map_err(&failure)?;
        rustix::fs::symlinkat(target, &above, &last).map_err(&failure)?;
        stamp.put_on_link(above.as_fd(), &last).map_err(&failure)?;
        Ok(())
    }

    pub fn hard_link(&self, name: &Path, target: &Path) -> Result<(), Failure> {
        let (from, first) = self.above(target)?;
        let (above, last) = self.above(name)?;
        let failure = self.failure(name);
        if name == target {
            return Ok(());
        }
        clear(above.as_fd(), &last).map_err(&failure)?;
        rustix::fs::linkat(&from, &first, &above, &last, AtFlags::empty()).map_err(&failure)
    }

    pub fn stamp_directory(&self, name: &Path, stamp: &Stamp) -> Result<(), Failure> {
        // The target directory itself existed before, and stays unchanged.
        if name.as_os_str().is_empty() {
            return Ok(());
        }
        let directory = self.enter(name)?;
        stamp.put_on(directory.as_fd()).map_err(self.failure(name))
    }
}

fn is_link(directory: std::os::fd::BorrowedFd<'_>, name: &OsStr) -> bool {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
}

/// Removes an existing entry, unless it is a directory.
fn clear(directory: std::os::fd::BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

impl Stamp {
    fn times(&self) -> Timestamps {
        let seconds = i64::try_from(self.modified).unwrap_or(0);
        Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: 0 },
        }
    }

    /// A link has no mode of its own.
    pub(super) fn put_on_link(
        &self,
        above: std::os::fd::BorrowedFd<'_>,
        last: &OsStr,
    ) -> Result<(), Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if let Some((uid, gid)) = self.owner {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(above, last, uid, gid, flags)?;
        }
        let _ = rustix::fs::utimensat(above, last, &self.times(), flags);
        Ok(())
    }

    pub(super) fn put_on(&self, file: impl AsFd) -> Result<(), Errno> {
        let file = file.as_fd();
        if let Some((uid, gid)) = self.owner {
            rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        rustix::fs::fchmod(file, Mode::from_raw_mode(self.mode))?;
        rustix::fs::futimens(file, &self.times())
    }
}

/// Writes all content, with holes where it is zero.
fn fill(file: &mut File, content: &mut impl Read, size: u64) -> io::Result<u64> {
    let mut buffer = vec![0; HOLE_BYTES.min(DATA_MAX)];
    let mut len = 0;
    loop {
        let count = read_full(content, &mut buffer)?;
        let part = &buffer[..count];
        if part.len() == buffer.len() && part.iter().all(|byte| *byte == 0) {
            file.seek(SeekFrom::Current(count as i64)).map(drop)?
        } else {
            file.write_all(part)?
        }
        len += count as u64;
        if count < buffer.len() {
            // A truncated archive ends where its last file does.
            if len != size {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends in the middle"));
            }
            file.set_len(len)?;
            return Ok(len);
        }
    }
}

fn read_full(content: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match content.read(&mut buffer[count..])? {
            0 => break,
            more => count += more,
        }
    }
    Ok(count)
}
