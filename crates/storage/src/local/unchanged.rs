//! Files that did not change since an earlier snapshot are not copied again: the new snapshot hard-links the earlier
//! one's file. Snapshots are never written to, so they may share files; with the live tree they never do.
//!
//! A file is unchanged if its inode, size and both times are: the kernel sets the change time, and nobody inside can.
//! Since timestamps have a granularity, a file that changed within [`limits::SNAPSHOT_SETTLED`] of a snapshot is not
//! listed, because another change might get the same time; it is copied again for the next one.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, Stat, linkat, openat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::copy::{RelativePath, open_place};
use sandkeep_core::limits;

/// The state of a live file when it was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        Self {
            size: stat.st_size as _,
            modified: (stat.st_mtime as _, stat.st_mtime_nsec as _),
            changed: (stat.st_ctime as _, stat.st_ctime_nsec as _),
        }
    }
}

/// The files of an earlier snapshot.
pub(super) struct Earlier {
    tree: OwnedFd,
    files: HashMap<u64, (Stamp, CString)>,
}

impl Earlier {
    /// Reads the list. An unintelligible list counts as missing: everything is copied.
    pub fn read(tree: OwnedFd, list: OwnedFd) -> io::Result<Self> {
        let mut text = Vec::new();
        File::from(list).read_to_end(&mut text)?;
        let lines = text.split(|byte| *byte == 0).filter(|line| !line.is_empty());
        Ok(Self { tree, files: lines.filter_map(parse).collect() })
    }

    /// Links the earlier snapshot's file into the new one, if it is unchanged.
    pub fn link(&self, stat: &Stat, to: impl AsFd, name: &CStr) -> io::Result<Shared> {
        let Some((stamp, path)) = self.files.get(&stat.st_ino) else { return Ok(Shared::No) };
        if *stamp != Stamp::of(stat) {
            return Ok(Shared::No);
        }
        let Ok((directory, file)) = open_place(&self.tree, path) else { return Ok(Shared::No) };
        match linkat(directory, file, to, name, AtFlags::empty()) {
            Ok(()) => Ok(Shared::Yes),
            // It has the maximum number of links, or this file system has no hard links.
            Err(Errno::MLINK | Errno::NOENT | Errno::PERM | Errno::NOTSUP) => Ok(Shared::No),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether a file is now shared with the earlier snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shared {
    Yes,
    No,
}

fn parse(line: &[u8]) -> Option<(u64, (Stamp, CString))> {
    let mut fields = line.splitn(7, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<i64>().ok();
    let inode = u64::try_from(number()?).ok()?;
    let size = number()?;
    let (modified, changed) = ((number()?, number()?), (number()?, number()?));
    let path = CString::new(fields.next()?).ok()?;
    Some((inode, (Stamp { size, modified, changed }, path)))
}

/// The list of a new snapshot.
pub(super) struct List {
    file: BufWriter<File>,
    /// Files that changed after this are not listed.
    settled: (i64, i64),
}

impl List {
    pub fn create(directory: impl AsFd, name: &CStr) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?);
        let now = clock_gettime(ClockId::Realtime);
        let settled = now.tv_sec - limits::SNAPSHOT_SETTLED.as_secs().cast_signed();
        Ok(Self { file: BufWriter::new(file), settled: (settled, now.tv_nsec) })
    }

    pub fn note(&mut self, stat: &Stat, place: &RelativePath) -> io::Result<()> {
        let Stamp { size, modified, changed } = Stamp::of(stat);
        if changed >= self.settled {
            return Ok(());
        }
        let inode = stat.st_ino;
        write!(self.file, "{inode} {size} {} {} ", modified.0, modified.1)?;
        write!(self.file, "{} {} ", changed.0, changed.1)?;
        self.file.write_all(place.as_bytes())?;
        self.file.write_all(&[0])
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()
    }
}
