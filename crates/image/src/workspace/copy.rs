//! Copies a directory of the host. If both are on one file system that supports it, files share their blocks until
//! either is written to; otherwise holes are kept. The host's side is only read, and may change meanwhile: an entry
//! that is gone when its turn comes is not copied.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, fstat, ioctl_ficlone, linkat, mkdirat, openat,
    readlinkat, seek, symlinkat,
};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::{FileOwner, WorkspaceDir, WorkspaceError};
use crate::layer::{Applied, SpaceCheck, attributes};
use sandkeep_core::limits;
use sandkeep_tree::{
    archive::{Attributes, attributes as found},
    beneath, untrusted,
};

/// The result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub entries: u64,
    pub bytes: u64,
    /// Files that share their blocks with those of the host.
    pub shared: u64,
    /// Pipes, sockets, device nodes, and mount points.
    pub skipped: u64,
}

/// Copies the content of a directory. Blocks.
pub fn copy(
    from: OwnedFd,
    to: &WorkspaceDir,
    owner: FileOwner,
    room: &SpaceCheck,
    given_up: &CancellationToken,
) -> Result<Copied, WorkspaceError> {
    let top = to.as_fd().try_clone_to_owned();
    let top = top.map_err(|source| WorkspaceError::Write { path: String::new(), source })?;
    let mut copying = Copying {
        top,
        owner,
        room,
        given_up,
        open: Vec::new(),
        path: Vec::new(),
        linked: HashMap::new(),
        clones: Clones::Perhaps,
        copied: Copied::default(),
        applied: Applied::nothing(to.ids()),
        buffer: vec![0; limits::LAYER_COPY_BYTES],
    };
    copying.all(from)?;
    Ok(copying.copied)
}

struct Copying<'a> {
    top: OwnedFd,
    owner: FileOwner,
    room: &'a SpaceCheck,
    given_up: &'a CancellationToken,
    open: Vec<Level>,
    /// Path of the current entry.
    path: Vec<u8>,
    /// The first names of files with several, by device and inode.
    linked: HashMap<(u64, u64), CString>,
    clones: Clones,
    copied: Copied,
    applied: Applied,
    buffer: Vec<u8>,
}

struct Level {
    from: OwnedFd,
    to: OwnedFd,
    names: Vec<CString>,
    attributes: Attributes,
    /// Length of the parent's path.
    parent_bytes: usize,
}

/// Whether files can share their blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clones {
    Perhaps,
    Never,
}

/// The result for an entry.
enum Taken {
    Entry,
    Directory,
    /// It cannot be copied.
    Skipped,
    /// It is gone.
    Nothing,
}

impl Copying<'_> {
    fn all(&mut self, from: OwnedFd) -> Result<(), WorkspaceError> {
        let to = self.top.try_clone().map_err(|source| self.unwritten(source))?;
        self.descend(from, to, 0)?;
        while let Some(level) = self.open.last_mut() {
            if self.given_up.is_cancelled() {
                return Err(WorkspaceError::GivenUp);
            }
            let Some(name) = level.names.pop() else {
                let level = self.open.pop().expect("it was there a moment ago");
                // After the last entry is written, because that would change its time.
                let done = attributes::set(&level.to, &level.attributes, &mut self.applied);
                done.map_err(|error| self.unwritten(error.into()))?;
                self.path.truncate(level.parent_bytes);
                continue;
            };
            let before = self.path.len();
            if before > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.to_bytes());
            match self.take(&name, before)? {
                Taken::Directory => self.count()?,
                Taken::Entry => {
                    self.count()?;
                    self.path.truncate(before);
                }
                Taken::Skipped => {
                    self.copied.skipped += 1;
                    self.path.truncate(before);
                }
                Taken::Nothing => self.path.truncate(before),
            }
        }
        Ok(())
    }

    fn take(&mut self, name: &CStr, parent_bytes: usize) -> Result<Taken, WorkspaceError> {
        let level = self.open.last().expect("an entry is in a directory");
        let node = match beneath::open(&level.from, name.to_bytes(), OFlags::PATH) {
            Ok(node) => node,
            Err(Errno::NOENT) => return Ok(Taken::Nothing),
            Err(Errno::XDEV) => return Ok(Taken::Skipped),
            Err(error) => return Err(self.unread(error.into())),
        };
        let stat = fstat(&node).map_err(|error| self.unread(error.into()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.take_directory(name, parent_bytes),
            FileType::RegularFile => self.take_file(name),
            FileType::Symlink => self.take_link(name, &node, &stat),
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(Taken::Skipped),
        }
    }

    fn take_directory(
        &mut self,
        name: &CStr,
        parent_bytes: usize,
    ) -> Result<Taken, WorkspaceError> {
        let level = self.open.last().expect("an entry is in a directory");
        let from = match beneath::open_dir(&level.from, name.to_bytes()) {
            Ok(from) => from,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Taken::Nothing),
            Err(error) => return Err(self.unread(error.into())),
        };
        let made = mkdirat(&level.to, name, Mode::RWXU).and_then(|()| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(&level.to, name, flags, Mode::empty())
        });
        let to = made.map_err(|error| self.unwritten(error.into()))?;
        self.descend(from, to, parent_bytes)?;
        Ok(Taken::Directory)
    }

    fn descend(
        &mut self,
        from: OwnedFd,
        to: OwnedFd,
        parent_bytes: usize,
    ) -> Result<(), WorkspaceError> {
        let max = limits::WALK_DEPTH_MAX;
        if self.open.len() >= max {
            return Err(WorkspaceError::TooDeep { path: self.shown(), max });
        }
        let looked = || -> io::Result<_> {
            let attributes = found::of(from.as_fd(), &fstat(&from)?)?;
            let mut names: Vec<_> =
                untrusted::entries(&from)?.into_iter().map(|(name, _)| name).collect();
            names.sort_unstable_by(|one, other| other.cmp(one));
            Ok((self.owner.of(attributes), names))
        };
        let (attributes, names) = looked().map_err(|error| self.unread(error))?;
        self.open.push(Level { from, to, names, attributes, parent_bytes });
        Ok(())
    }

    fn take_link(
        &mut self,
        name: &CStr,
        node: &OwnedFd,
        stat: &Stat,
    ) -> Result<Taken, WorkspaceError> {
        let level = self.open.last().expect("an entry is in a directory");
        let target = readlinkat(node, c"", Vec::new());
        let target = target.map_err(|error| self.unread(error.into()))?;
        let found = self.owner.of(found::plain(stat));
        let made = symlinkat(&target, &level.to, name).and_then(|()| {
            let to = level.to.as_fd();
            attributes::set_on_special(to, name.to_bytes(), &found, &mut self.applied)
        });
        made.map_err(|error| self.unwritten(error.into()))?;
        Ok(Taken::Entry)
    }

    fn take_file(&mut self, name: &CStr) -> Result<Taken, WorkspaceError> {
        let level = self.open.last().expect("an entry is in a directory");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let from = match beneath::open(&level.from, name.to_bytes(), flags) {
            Ok(from) => File::from(from),
            Err(Errno::NOENT) => return Ok(Taken::Nothing),
            Err(error) => return Err(self.unread(error.into())),
        };
        // Of the opened file, in case it is not the one that was checked.
        let stat = fstat(&from).map_err(|error| self.unread(error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(Taken::Skipped);
        }
        let several = (stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino));
        if let Some(first) = several.and_then(|file| self.linked.get(&file)) {
            let made = linkat(&self.top, first, &level.to, name, AtFlags::empty());
            made.map_err(|error| self.unwritten(error.into()))?;
            return Ok(Taken::Entry);
        }
        let found = found::of(from.as_fd(), &stat).map_err(|error| self.unread(error.into()))?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(&level.to, name, flags, Mode::RUSR | Mode::WUSR);
        let to = File::from(made.map_err(|error| self.unwritten(error.into()))?);
        self.fill(&from, &to, &stat)?;
        let set = attributes::set(&to, &self.owner.of(found), &mut self.applied);
        set.map_err(|error| self.unwritten(error.into()))?;
        if let Some(file) = several {
            let path = CString::new(self.path.clone()).expect("names hold no NUL");
            self.linked.insert(file, path);
        }
        Ok(Taken::Entry)
    }

    fn fill(&mut self, from: &File, to: &File, stat: &Stat) -> Result<(), WorkspaceError> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        // Before anything is written: for a sparse file the allocated size, which is what it may cost here.
        self.copied.bytes += size.min(u64::try_from(stat.st_blocks).unwrap_or(0) * 512);
        if self.copied.bytes > limits::SOURCE_MAX_BYTES {
            let max = limits::SOURCE_MAX_BYTES;
            return Err(WorkspaceError::TooLarge { what: "bytes", max });
        }
        if size == 0 {
            return Ok(());
        }
        if self.clones == Clones::Perhaps {
            match ioctl_ficlone(to, from) {
                Ok(()) => {
                    self.copied.shared += 1;
                    return Ok(());
                }
                Err(Errno::DQUOT | Errno::NOSPC) => {
                    return Err(self.unwritten(Errno::NOSPC.into()));
                }
                // The file system does not support it, or there are two.
                Err(_) => self.clones = Clones::Never,
            }
        }
        to.set_len(size).map_err(|error| self.unwritten(error))?;
        let mut start = 0;
        while let Some((data, hole)) = data_after(from, start, size) {
            self.copy_bytes(from, to, data, hole)?;
            start = hole;
        }
        Ok(())
    }

    fn copy_bytes(
        &mut self,
        from: &File,
        to: &File,
        mut offset: u64,
        end: u64,
    ) -> Result<(), WorkspaceError> {
        while offset < end {
            if self.given_up.is_cancelled() {
                return Err(WorkspaceError::GivenUp);
            }
            let most = usize::try_from(end - offset).unwrap_or(usize::MAX).min(self.buffer.len());
            let read = from.read_at(&mut self.buffer[..most], offset);
            let read = read.map_err(|error| self.unread(error))?;
            if read == 0 {
                // It was truncated meanwhile.
                return Ok(());
            }
            let room = self.room.take(read as u64, 0);
            let written = room.and_then(|()| to.write_all_at(&self.buffer[..read], offset));
            written.map_err(|error| self.unwritten(error))?;
            offset += read as u64;
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), WorkspaceError> {
        self.copied.entries += 1;
        self.room.take(0, 1).map_err(|error| self.unwritten(error))?;
        if self.copied.entries > limits::SOURCE_ENTRIES_MAX {
            let max = limits::SOURCE_ENTRIES_MAX;
            Err(WorkspaceError::TooLarge { what: "files and directories", max })
        } else {
            Ok(())
        }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    fn unread(&self, source: io::Error) -> WorkspaceError {
        WorkspaceError::Read { path: self.shown(), source }
    }

    fn unwritten(&self, source: io::Error) -> WorkspaceError {
        WorkspaceError::Write { path: self.shown(), source }
    }
}

/// The next data section of a file, at or after `start`.
fn data_after(file: &File, start: u64, size: u64) -> Option<(u64, u64)> {
    if start >= size {
        return None;
    }
    let data = match seek(file, SeekFrom::Data(start)) {
        Ok(data) => data,
        // Only a hole is left.
        Err(Errno::NXIO) => return None,
        // The file system does not support holes.
        Err(_) => return Some((start, size)),
    };
    let hole = seek(file, SeekFrom::Hole(data)).unwrap_or(size);
    (data < size).then_some((data, hole.min(size)))
}
