//! New names. The name must be one that the rules let be written; whether a hidden name exists makes no difference.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, linkat, mkdirat, mknodat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use sandkeep_core::rules::Permission;

use super::opening::open_beneath;
use super::{Answer, Filesystem, Handled, Locked, Place, key};
use crate::control::Action;
use crate::opened::Access;
use crate::peers::Told;
use crate::table::{Key, Kind};
use crate::wire::{Fields, Header};

const PERMISSION_BITS: u32 = 0o7777;
const SET_ID_BITS: u32 = 0o6000;

impl Filesystem {
    pub(super) fn make_directory(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let (mode, umask) = (fields.u32()?, fields.u32()?);
        let mode = Mode::from_raw_mode(mode & !umask & PERMISSION_BITS);
        self.make(header, fields.name()?, AtFlags::REMOVEDIR, |dir, name| mkdirat(dir, name, mode))
    }

    pub(super) fn symlink(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let name = fields.name()?;
        let target = fields.text()?;
        self.make(header, name, AtFlags::empty(), |dir, name| symlinkat(target, dir, name))
    }

    /// Files, fifos and sockets; a device would be one of the host.
    pub(super) fn make_node(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let (mode, _, umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
        fields.skip(4)?;
        let kind = FileType::from_raw_mode(mode);
        if !matches!(kind, FileType::RegularFile | FileType::Fifo | FileType::Socket) {
            return Err(Errno::PERM);
        }
        let mode = Mode::from_raw_mode(mode & !umask & PERMISSION_BITS);
        let make = |dir: &OwnedFd, name: &[u8]| mknodat(dir, name, kind, mode, 0);
        self.make(header, fields.name()?, AtFlags::empty(), make)
    }

    /// Makes something new under a name, for the user who asks.
    fn make(
        &self,
        header: &Header,
        name: &[u8],
        removed_as: AtFlags,
        make: impl Fn(&OwnedFd, &[u8]) -> Result<(), Errno>,
    ) -> Handled {
        let owner = (self.on_disk(header.uid)?, self.on_disk(header.gid)?);
        let mut locked = self.lock();
        let place = self.new_place(&mut locked, header, name)?;
        let dir = locked.directory(place.dir)?;
        make(&dir, name)?;
        if let Err(error) = self.give(&dir, name, owner) {
            // Nobody else is given it before we answer.
            unlinkat(&dir, name, removed_as)?;
            return Err(error);
        }
        self.renamed(&locked, &place);
        let stat = locked.stat_name(place.dir, name)?;
        Ok(Answer::Reply(self.entry(&mut locked, &place, &stat)))
    }

    pub(super) fn create(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let (flags, mode, umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
        fields.skip(4)?;
        let name = fields.name()?;
        let owner = (self.on_disk(header.uid)?, self.on_disk(header.gid)?);
        let mut locked = self.lock();
        let place = self.new_place(&mut locked, header, name)?;
        let dir = locked.directory(place.dir)?;
        let file = match new_file(&dir, name, mode & !umask) {
            Ok(file) => {
                if let Err(error) = self.give_file(&dir, &file, owner, mode & !umask) {
                    unlinkat(&dir, name, AtFlags::empty())?;
                    return Err(error);
                }
                self.renamed(&locked, &place);
                file
            }
            // Somebody else was faster; the name is one that may be written.
            Err(Errno::EXIST) if !OFlags::from_bits_retain(flags).contains(OFlags::EXCL) => {
                let file =
                    open_beneath(&dir, name, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty())?;
                if OFlags::from_bits_retain(flags).contains(OFlags::TRUNC) {
                    rustix::fs::ftruncate(&file, 0)?;
                    let stat = fstat(&file)?;
                    self.peers.tell(&Told::File((stat.st_dev, stat.st_ino)));
                }
                file
            }
            Err(error) => return Err(error),
        };
        let stat = fstat(&file)?;
        let mut reply = self.entry(&mut locked, &place, &stat);
        let id = locked.table.find(key(&stat, place.permission)).ok_or(Errno::STALE)?;
        locked.opened.add(id, Access::Write, file);
        reply.append(&self.opened(&mut locked, id, access_of(flags))?);
        Ok(Answer::Reply(reply))
    }

    /// A file that has no name, as O_TMPFILE makes it. Giving it one is a link, for which the rules hold.
    pub(super) fn create_nameless(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let (opened, mode, umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let owner = (self.on_disk(header.uid)?, self.on_disk(header.gid)?);
        let mut locked = self.lock();
        let state = Arc::clone(locked.table.directory(header.node)?);
        if !locked.rules.may_reach(&state, Permission::Write) {
            return Err(self.refuse(&mut locked, header, header.node, Action::Create));
        }
        let dir = locked.directory(header.node)?;
        let mode = mode & !umask;
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let permissions = Mode::from_raw_mode(mode & PERMISSION_BITS);
        let file = open_beneath(&dir, b".", flags, permissions)?;
        self.give_file(&dir, &file, owner, mode)?;
        let stat = fstat(&file)?;
        let id = locked.table.add_nameless(key(&stat, Permission::Write), Arc::new(file));
        let mut reply = self.entry_of(&locked, id, &stat, Permission::Write, &Kind::File);
        reply.append(&self.opened(&mut locked, id, access_of(opened))?);
        Ok(Answer::Reply(reply))
    }

    pub(super) fn link(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let source = fields.u64()?;
        let name = fields.name()?;
        let mut locked = self.lock();
        if locked.table.get(source)?.key.permission != Permission::Write {
            return Err(self.refuse(&mut locked, header, source, Action::Link));
        }
        let place = self.new_place(&mut locked, header, name)?;
        let dir = locked.directory(place.dir)?;
        locked.stat(source)?;
        let node = locked.table.get(source)?;
        match (node.kept.clone(), node.names.as_slice().to_vec()) {
            (Some(kept), _) => linkat(&kept, "", &dir, name, AtFlags::EMPTY_PATH)?,
            (None, names) => {
                let linked = names.iter().any(|from| locked.link_from(from, source, &dir, name));
                if !linked {
                    // Once more, for the error.
                    let from = names.first().ok_or(Errno::STALE)?;
                    let above = locked.directory(from.dir)?;
                    linkat(above, &*from.name, &dir, name, AtFlags::empty())?;
                }
            }
        }
        let stat = locked.stat_name(place.dir, name)?;
        if key(&stat, Permission::Write) != locked.table.get(source)?.key {
            // It was replaced between two system calls by somebody outside of the mount.
            return Err(Errno::STALE);
        }
        self.renamed(&locked, &place);
        self.peers.tell(&Told::File((stat.st_dev, stat.st_ino)));
        Ok(Answer::Reply(self.entry(&mut locked, &place, &stat)))
    }

    /// A name is another file's, a new one, or gone: the other servers of the tree are told.
    pub(super) fn renamed(&self, locked: &Locked, place: &Place<'_>) {
        let Ok(dir) = locked.table.get(place.dir) else { return };
        self.peers.tell(&Told::Name { dir: dir.key.file(), name: place.name.to_vec() });
    }

    /// A name that may be written.
    pub(super) fn new_place<'a>(
        &self,
        locked: &mut Locked,
        header: &Header,
        name: &'a [u8],
    ) -> Result<Place<'a>, Errno> {
        let place = locked.place(header.node, name)?;
        match place.permission {
            Permission::Write => Ok(place),
            _ => Err(self.refuse_name(locked, header, &place, Action::Create)),
        }
    }

    fn give_file(
        &self,
        dir: &OwnedFd,
        file: impl AsFd,
        owner: (u32, u32),
        mode: u32,
    ) -> Result<(), Errno> {
        use rustix::fs::{Gid, Uid, fchown};
        const SET_GROUP: u32 = 0o2000;
        let inherits = fstat(dir)?.st_mode & SET_GROUP != 0;
        let gid = (!inherits).then(|| Gid::from_raw(owner.1));
        fchown(&file, Some(Uid::from_raw(owner.0)), gid)?;
        // Which a change of owner removes.
        match mode & SET_ID_BITS {
            0 => Ok(()),
            _ => fchmod(file, Mode::from_raw_mode(mode & PERMISSION_BITS)),
        }
    }
}

impl Locked {
    fn link_from(
        &mut self,
        from: &crate::table::Name,
        source: u64,
        dir: &OwnedFd,
        name: &[u8],
    ) -> bool {
        let is_source =
            |stat: &Stat, key: Key| (stat.st_dev, stat.st_ino) == (key.device, key.inode);
        let Ok(key) = self.table.get(source).map(|node| node.key) else { return false };
        let Ok(above) = self.directory(from.dir) else { return false };
        let found = rustix::fs::statat(&above, &*from.name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|stat| is_source(&stat, key))
            && linkat(above, &*from.name, dir, name, AtFlags::empty()).is_ok()
    }
}

/// How a file is opened that is created meanwhile: the flags of an open.
fn access_of(flags: u32) -> Access {
    match OFlags::from_bits_retain(flags) & OFlags::ACCMODE {
        OFlags::RDONLY => Access::Read,
        _ => Access::Write,
    }
}

fn new_file(dir: &OwnedFd, name: &[u8], mode: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
    open_beneath(dir, name, flags, Mode::from_raw_mode(mode & PERMISSION_BITS))
}
