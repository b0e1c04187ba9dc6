//! Attributes and extended attributes.

use std::os::fd::AsFd;

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags, fchmod,
    fgetxattr, flistxattr, fremovexattr, fsetxattr, ftruncate,
};
use rustix::io::Errno;
use sandkeep_core::limits;
use sandkeep_core::rules::Permission;

use super::{Answer, Filesystem, Handled, Locked, done};
use crate::control::Action;
use crate::opened::Access;
use crate::table::Kind;
use crate::wire::{Fields, Header, Reply, set};

const PERMISSION_BITS: u32 = 0o7777;
const SET_ID_BITS: u32 = 0o6000;
const GROUP_EXECUTE: u32 = 0o010;
const SET_GROUP: u32 = 0o2000;
const SET_USER: u32 = 0o4000;

/// The only attributes that a sandbox may have: others mean something to the host.
const OWN_XATTRS: &[u8] = b"user.";

/// A request to change attributes.
struct Change {
    valid: u32,
    size: u64,
    times: Timestamps,
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Change {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Errno> {
        let valid = fields.u32()?;
        fields.skip(12)?;
        let size = fields.u64()?;
        fields.skip(8)?;
        let (atime, mtime, _) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (atime_nsec, mtime_nsec, _) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let mode = fields.u32()?;
        fields.skip(4)?;
        let (uid, gid) = (fields.u32()?, fields.u32()?);
        let time = |given, now, seconds: u64, nanos: u32| {
            let tv_nsec = match (valid & given != 0, valid & now != 0) {
                (false, _) => UTIME_OMIT,
                (true, true) => UTIME_NOW,
                (true, false) => nanos.into(),
            };
            Timespec { tv_sec: seconds.cast_signed(), tv_nsec }
        };
        let times = Timestamps {
            last_access: time(set::ATIME, set::ATIME_NOW, atime, atime_nsec),
            last_modification: time(set::MTIME, set::MTIME_NOW, mtime, mtime_nsec),
        };
        Ok(Self { valid, size, times, mode, uid, gid })
    }

    fn has(&self, bits: u32) -> bool {
        self.valid & bits != 0
    }
}

impl Filesystem {
    pub(super) fn get_attributes(&self, header: &Header) -> Handled {
        let mut locked = self.lock();
        let node = locked.table.get(header.node)?;
        let is_hidden = match node.kind {
            Kind::Directory(_) => locked.is_closed(header.node)?,
            _ => node.key.permission == Permission::None,
        };
        if is_hidden {
            return Err(Errno::ACCESS);
        }
        self.attributes_of(&mut locked, header.node)
    }

    pub(super) fn set_attributes(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let change = Change::read(&mut fields)?;
        let mut locked = self.lock();
        self.needs_write(&mut locked, header, Action::Attributes)?;
        let id = header.node;
        if change.has(set::SIZE) {
            let file = locked.file(id, Access::Write)?;
            if change.has(set::KILL_SUIDGID) {
                drop_set_ids(&file)?;
            }
            ftruncate(file, change.size)?;
        }
        // Before the mode, which a change of owner may reset.
        if change.has(set::UID | set::GID) {
            let owner =
                |bit, id| if change.has(bit) { self.on_disk(id).map(Some) } else { Ok(None) };
            let uid = owner(set::UID, change.uid)?.map(Uid::from_raw);
            let gid = owner(set::GID, change.gid)?.map(Gid::from_raw);
            let change = |dir: &_, name: &_, flags| rustix::fs::chownat(dir, name, uid, gid, flags);
            locked.by_name(id, change)?;
        }
        if change.has(set::MODE) {
            let mode = Mode::from_raw_mode(change.mode & PERMISSION_BITS);
            match locked.table.get(id)?.kind {
                Kind::Directory(_) | Kind::File => fchmod(locked.either(id, Access::Read)?, mode)?,
                Kind::Special => locked.by_name(id, |dir, name, _| {
                    rustix::fs::chmodat(dir, name, mode, AtFlags::empty())
                })?,
                Kind::Symlink => return Err(Errno::OPNOTSUPP),
            }
        }
        if change.has(set::ATIME | set::MTIME) {
            let times = change.times;
            locked
                .by_name(id, |dir, name, flags| rustix::fs::utimensat(dir, name, &times, flags))?;
        }
        self.changed(&mut locked, id);
        self.attributes_of(&mut locked, id)
    }

    pub(super) fn set_xattr(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let (size, flags) = (fields.u32()? as usize, fields.u32()?);
        let name = own(fields.text()?)?;
        let value = fields.skip(size)?;
        let mut locked = self.lock();
        self.needs_write(&mut locked, header, Action::Attributes)?;
        let file = locked.either(header.node, Access::Read)?;
        fsetxattr(file, name, value, XattrFlags::from_bits_truncate(flags))?;
        Ok(done())
    }

    pub(super) fn remove_xattr(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let name = own(fields.text()?)?;
        let mut locked = self.lock();
        self.needs_write(&mut locked, header, Action::Attributes)?;
        fremovexattr(locked.either(header.node, Access::Read)?, name)?;
        Ok(done())
    }

    pub(super) fn get_xattr(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let room = fields.u32()? as usize;
        fields.skip(4)?;
        let name = fields.text()?;
        if own(name).is_err() {
            // As on a file without it: programs ask for labels and capabilities all the time.
            return Err(if name.starts_with(b"security.") {
                Errno::NODATA
            } else {
                Errno::OPNOTSUPP
            });
        }
        let file = self.lock().readable(header.node)?;
        let mut value = vec![0; limits::RULEFS_XATTR_MAX_BYTES];
        let len = fgetxattr(file, name, &mut value[..])?;
        sized(&value[..len], room)
    }

    pub(super) fn list_xattr(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let room = fields.u32()? as usize;
        let file = self.lock().readable(header.node)?;
        let mut names = vec![0; limits::RULEFS_XATTR_MAX_BYTES];
        let len = flistxattr(file, &mut names[..])?;
        let names = names[..len].split_inclusive(|byte| *byte == 0);
        let names: Vec<u8> =
            names.filter(|name| name.starts_with(OWN_XATTRS)).flatten().copied().collect();
        sized(&names, room)
    }

    pub(super) fn needs_write(
        &self,
        locked: &mut Locked,
        header: &Header,
        action: Action,
    ) -> Result<(), Errno> {
        match locked.table.get(header.node)?.key.permission {
            Permission::Write => Ok(()),
            _ => Err(self.refuse(locked, header, header.node, action)),
        }
    }
}

impl Locked {
    fn readable(&mut self, id: u64) -> Result<std::sync::Arc<std::os::fd::OwnedFd>, Errno> {
        match self.table.get(id)?.key.permission {
            Permission::Read | Permission::Write => self.either(id, Access::Read),
            Permission::None | Permission::View => Err(Errno::ACCESS),
        }
    }

    /// Does something with a file by a directory and a name, or by its descriptor and an empty name.
    fn by_name(
        &mut self,
        id: u64,
        change: impl Fn(&std::os::fd::OwnedFd, &[u8], AtFlags) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.stat(id)?;
        let node = self.table.get(id)?;
        if let Some(kept) = node.kept.clone() {
            return change(&kept, b"", AtFlags::EMPTY_PATH);
        }
        if let Kind::Directory(_) = node.kind {
            let dir = self.directory(id)?;
            return change(&dir, b"", AtFlags::EMPTY_PATH);
        }
        // Which of its names is current, its attributes have just shown.
        let names = node.names.as_slice().to_vec();
        let mut failure = Errno::STALE;
        for name in names {
            let Ok(dir) = self.directory(name.dir) else { continue };
            let stat = rustix::fs::statat(dir.as_fd(), &*name.name, AtFlags::SYMLINK_NOFOLLOW);
            let key = self.table.get(id)?.key;
            match stat {
                Ok(stat) if stat.st_ino == key.inode && stat.st_dev == key.device => {
                    return change(&dir, &name.name, AtFlags::SYMLINK_NOFOLLOW);
                }
                Ok(_) => {}
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// What every write by an ordinary user does to a set-user-ID program.
pub(super) fn drop_set_ids(file: impl AsFd) -> Result<(), Errno> {
    let mode = rustix::fs::fstat(&file)?.st_mode;
    let mut left = mode & PERMISSION_BITS & !SET_USER;
    // Without execution by the group the other bit is not about privileges.
    if mode & GROUP_EXECUTE != 0 {
        left &= !SET_GROUP;
    }
    if mode & SET_ID_BITS != 0 && left != mode & PERMISSION_BITS {
        fchmod(file, Mode::from_raw_mode(left))
    } else {
        Ok(())
    }
}

fn own(name: &[u8]) -> Result<&[u8], Errno> {
    name.starts_with(OWN_XATTRS).then_some(name).ok_or(Errno::OPNOTSUPP)
}

/// The answer to a request with room for this much; 0 asks for the size.
fn sized(value: &[u8], room: usize) -> Handled {
    match room {
        0 => Ok(Answer::Reply(Reply::default().u32(value.len() as u32).u32(0))),
        room if value.len() > room => Err(Errno::RANGE),
        _ => Ok(Answer::Reply(Reply::default().bytes(value))),
    }
}
