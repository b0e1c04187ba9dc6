//! Attributes and names as the mount shows them.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use sandkeep_core::rules::Permission;

use super::{Answer, Epochs, Filesystem, Handled, Locked, Place, key, kind_of};
use crate::table::Kind;
use crate::wire::Reply;

const WRITE_BITS: u32 = 0o222;
const READ_BITS: u32 = 0o444;
const EXECUTE_BITS: u32 = 0o111;
const PERMISSION_BITS: u32 = 0o7777;

impl Filesystem {
    /// The id that the mount shows for one on disk.
    fn shown(&self, id: u32) -> u32 {
        let ids = self.ids;
        match id.checked_sub(ids.disk_base) {
            Some(inside) if inside < ids.count => ids.shown_base.saturating_add(inside),
            _ => ids.nobody(),
        }
    }

    /// The id on disk for one that the mount shows.
    pub(super) fn on_disk(&self, id: u32) -> Result<u32, Errno> {
        let ids = self.ids;
        match id.checked_sub(ids.shown_base) {
            Some(inside) if inside < ids.count => Ok(ids.disk_base.saturating_add(inside)),
            _ => Err(Errno::OVERFLOW),
        }
    }

    /// The mode and the ids by which the kernel decides about opening. With zero messages it is the only one to decide.
    fn guarded(
        &self,
        locked: &Locked,
        stat: &Stat,
        permission: Permission,
        kind: &Kind,
    ) -> [u32; 3] {
        let (mode, nobody) = (stat.st_mode, self.ids.nobody());
        let own = [self.shown(stat.st_uid), self.shown(stat.st_gid)];
        match (kind, permission) {
            (Kind::Directory(state), _) => {
                // Whether a name in it may be changed is decided by name.
                let is_writable = permission == Permission::Write
                    || locked.rules.may_reach(state, Permission::Write);
                let mode = if is_writable { mode } else { mode & !WRITE_BITS };
                [mode, own[0], own[1]]
            }
            (Kind::Symlink, _) | (_, Permission::Write) => [mode, own[0], own[1]],
            (_, Permission::Read) => {
                let execute = if mode & EXECUTE_BITS != 0 { EXECUTE_BITS } else { 0 };
                [mode & !PERMISSION_BITS | READ_BITS | execute, nobody, nobody]
            }
            (_, Permission::View | Permission::None) => [mode & !PERMISSION_BITS, nobody, nobody],
        }
    }

    pub(super) fn attributes(
        &self,
        locked: &Locked,
        stat: &Stat,
        permission: Permission,
        kind: &Kind,
    ) -> Reply {
        let [mode, uid, gid] = self.guarded(locked, stat, permission, kind);
        let numbers = [
            stat.st_ino,
            stat.st_size as u64,
            stat.st_blocks as u64,
            stat.st_atime as u64,
            stat.st_mtime as u64,
            stat.st_ctime as u64,
        ];
        let reply = numbers.into_iter().fold(Reply::default(), Reply::u64);
        let numbers = [
            stat.st_atime_nsec as u32,
            stat.st_mtime_nsec as u32,
            stat.st_ctime_nsec as u32,
            mode,
            stat.st_nlink as u32,
            uid,
            gid,
            device(stat),
            stat.st_blksize as u32,
            0,
        ];
        numbers.into_iter().fold(reply, Reply::u32)
    }

    pub(super) fn attributes_of(&self, locked: &mut Locked, id: u64) -> Handled {
        let stat = locked.stat(id)?;
        let node = locked.table.get(id)?;
        let attributes = self.attributes(locked, &stat, node.key.permission, &node.kind);
        let mut reply =
            Reply::default().u64(locked.written.attributes_secs(node.key.file())).u64(0);
        reply.append(&attributes);
        Ok(Answer::Reply(reply))
    }

    /// Gives the kernel a node for what was found under a name.
    pub(super) fn entry(&self, locked: &mut Locked, place: &Place<'_>, stat: &Stat) -> Reply {
        let kind = if FileType::from_raw_mode(stat.st_mode).is_dir() {
            Kind::Directory(place.state.clone().into())
        } else {
            kind_of(stat)
        };
        let key = key(stat, place.permission);
        let id = locked.table.look_up(place.dir, place.name, key, &kind);
        self.entry_of(locked, id, stat, place.permission, &kind)
    }

    pub(super) fn entry_of(
        &self,
        locked: &Locked,
        id: u64,
        stat: &Stat,
        permission: Permission,
        kind: &Kind,
    ) -> Reply {
        let (names, attributes) = (
            locked.written.names_secs(),
            locked.written.attributes_secs((stat.st_dev, stat.st_ino)),
        );
        let mut reply = Reply::default().u64(id).u64(0).u64(names).u64(attributes).u32(0).u32(0);
        reply.append(&self.attributes(locked, stat, permission, kind));
        reply
    }

    /// The answer for a name that does not exist, which the kernel remembers.
    pub(super) fn missing(&self, locked: &Locked) -> Answer {
        let reply = Reply::default().u64(0).u64(0).u64(locked.written.names_secs());
        Answer::Reply((0..13).fold(reply, |reply, _| reply.u64(0)))
    }

    /// The answer for a name that is hidden: it looks the same from inside.
    pub(super) fn hidden(&self, locked: &Locked) -> Handled {
        match self.epochs {
            Epochs::Known => Ok(self.missing(locked)),
            Epochs::Unknown => Err(Errno::NOENT),
        }
    }

    /// Gives a new file to the user who made it.
    pub(super) fn give(
        &self,
        dir: impl AsFd,
        name: &[u8],
        (uid, gid): (u32, u32),
    ) -> Result<(), Errno> {
        use rustix::fs::{AtFlags, Gid, Uid, chownat, fstat};
        const SET_GROUP: u32 = 0o2000;
        // In a directory with this bit it has the directory's group already.
        let inherits = fstat(&dir)?.st_mode & SET_GROUP != 0;
        let gid = (!inherits).then(|| Gid::from_raw(gid));
        chownat(dir, name, Some(Uid::from_raw(uid)), gid, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// The kernel's encoding of a device number in 32 bits.
fn device(stat: &Stat) -> u32 {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}
