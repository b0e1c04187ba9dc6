//! Looking names up.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, Stat, statat};
use rustix::io::Errno;
use sandkeep_core::limits;
use sandkeep_core::rules::{Permission, State};

use super::opening::open_directory_beneath;
use super::{Answer, Filesystem, Handled, Locked, Place, is_directory};
use crate::table::Kind;
use crate::wire::{Header, Reply};

impl Filesystem {
    pub(super) fn look_up(&self, header: &Header, name: &[u8]) -> Handled {
        let mut locked = self.lock();
        let place = locked.place(header.node, name)?;
        // Decided before the disk is asked: whether a hidden name exists makes no difference, not even in time.
        if place.permission == Permission::None
            && !locked.rules.may_reach(&place.state, Permission::View)
        {
            return self.hidden(&locked);
        }
        let stat = match locked.stat_name(place.dir, name) {
            Err(Errno::NOENT) => return Ok(self.missing(&locked)),
            found => found?,
        };
        if !locked.shows(&place, &stat)? {
            return self.hidden(&locked);
        }
        Ok(Answer::Reply(self.entry(&mut locked, &place, &stat)))
    }

    pub(super) fn read_link(&self, header: &Header) -> Handled {
        let mut locked = self.lock();
        let node = locked.table.get(header.node)?;
        if node.key.permission == Permission::None {
            return Err(Errno::ACCESS);
        }
        if !matches!(node.kind, Kind::Symlink) {
            return Err(Errno::INVAL);
        }
        let kept = node.kept.clone();
        let names = node.names.as_slice().to_vec();
        let target = match (kept, names.first()) {
            (Some(kept), _) => rustix::fs::readlinkat(kept, "", Vec::new())?,
            (None, Some(name)) => {
                let dir = locked.directory(name.dir)?;
                rustix::fs::readlinkat(dir, &*name.name, Vec::new())?
            }
            (None, None) => return Err(Errno::STALE),
        };
        Ok(Answer::Reply(Reply::default().bytes(target.as_bytes())))
    }
}

impl Locked {
    /// Whether a file that was found under a name is visible there.
    pub(super) fn shows(&mut self, place: &Place<'_>, stat: &Stat) -> Result<bool, Errno> {
        if place.permission > Permission::None {
            return Ok(true);
        }
        if !is_directory(stat) || !self.rules.may_reach(&place.state, Permission::View) {
            return Ok(false);
        }
        let dir = self.directory(place.dir)?;
        let (names, depth) = (limits::RULEFS_WAY_MAX_NAMES, limits::WALK_DEPTH_MAX);
        let mut left = Left { names, depth };
        self.leads_on(&dir, place.name, &place.state, &mut left)
    }

    /// Whether anything below a directory is visible: the first such name ends the search, and so does the limit.
    fn leads_on(
        &self,
        above: impl AsFd,
        name: &[u8],
        state: &State,
        left: &mut Left,
    ) -> Result<bool, Errno> {
        if left.depth == 0 || !self.rules.may_reach(state, Permission::View) {
            return Ok(false);
        }
        let dir = match open_directory_beneath(above, name) {
            Ok(dir) => dir,
            // It is gone, or it is not for us: a mount, or a case-insensitive directory.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let mut directories = Vec::new();
        for name in names_in(&dir, &mut left.names)? {
            if self.rules.permission(state, &name) > Permission::None {
                return Ok(true);
            }
            directories.push(name);
        }
        left.depth -= 1;
        for name in directories {
            let state = self.rules.step(state, &name).1;
            if self.leads_on(&dir, &name, &state, left)? {
                return Ok(true);
            }
        }
        left.depth += 1;
        Ok(false)
    }
}

/// What a search may still use.
struct Left {
    names: usize,
    /// Every level holds a descriptor.
    depth: usize,
}

/// The names in a directory, without `.` and `..`, as far as the limit allows.
fn names_in(dir: impl AsFd, left: &mut usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if *left == 0 {
            break;
        }
        *left -= 1;
        names.push(name.to_vec());
    }
    Ok(names)
}

/// One entry of a listing, as the file system below has it.
pub(super) struct Entry {
    pub name: Vec<u8>,
    pub inode: u64,
    pub kind: FileType,
    /// Where the listing continues after it.
    pub next: u64,
}

/// Some entries from a position on, about as many as fit the reply.
pub(super) fn entries_from(dir: impl AsFd, from: u64, bytes: usize) -> Result<Vec<Entry>, Errno> {
    const BUFFER_MAX_BYTES: usize = 64 * 1024;
    const BUFFER_MIN_BYTES: usize = 1024;
    rustix::fs::seek(&dir, SeekFrom::Start(from))?;
    let mut buffer = Vec::with_capacity(bytes.clamp(BUFFER_MIN_BYTES, BUFFER_MAX_BYTES));
    let mut raw = RawDir::new(&dir, buffer.spare_capacity_mut());
    let mut entries = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry?;
        entries.push(Entry {
            name: entry.file_name().to_bytes().to_vec(),
            inode: entry.ino(),
            kind: entry.file_type(),
            next: entry.next_entry_cookie(),
        });
        if raw.is_buffer_empty() {
            break;
        }
    }
    Ok(entries)
}

/// What has a name that was just listed; `None` if it is gone.
pub(super) fn stat_listed(dir: impl AsFd, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
