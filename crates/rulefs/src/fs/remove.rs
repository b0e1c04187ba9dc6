//! Names that go or change. The rules must let both ends be written. A directory moves only to where they treat
//! everything below it the same: elsewhere the answer is EXDEV, and programs copy file by file instead.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat, renameat_with, unlinkat};
use rustix::io::Errno;
use sandkeep_core::rules::Permission;

use super::opening::open_beneath;
use super::{Filesystem, Handled, Locked, Place, done, is_directory, key};
use crate::control::Action;
use crate::opened::Access;
use crate::peers::Told;
use crate::table::Kind;
use crate::wire::{Fields, Header, op};

impl Filesystem {
    pub(super) fn remove(&self, header: &Header, name: &[u8], flags: AtFlags) -> Handled {
        let mut locked = self.lock();
        let place = self.changeable(&mut locked, header, name, Action::Remove)?;
        let stat = locked.stat_name(place.dir, name)?;
        let dir = locked.directory(place.dir)?;
        let loses = locked.prepare_loss(&place, &stat)?;
        unlinkat(dir, name, flags)?;
        locked.lost(loses, &place);
        self.renamed(&locked, &place);
        self.removed_stat(&locked, &stat);
        Ok(done())
    }

    pub(super) fn rename(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let to_dir = fields.u64()?;
        let flags = match header.opcode {
            op::RENAME2 => {
                let flags = fields.u32()?;
                fields.skip(4)?;
                flags
            }
            _ => 0,
        };
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL);
        }
        let (from, to) = (fields.name()?, fields.name()?);
        let mut locked = self.lock();
        let from = self.changeable(&mut locked, header, from, Action::Rename)?;
        let to_header = Header { node: to_dir, ..*header };
        let to = self.changeable(&mut locked, &to_header, to, Action::Rename)?;
        let moved = locked.stat_name(from.dir, from.name)?;
        let replaced = match locked.stat_name(to.dir, to.name) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        let moves_directory =
            is_directory(&moved) || (exchanges && replaced.as_ref().is_some_and(is_directory));
        if moves_directory && from.state != to.state {
            return Err(Errno::XDEV);
        }
        let loses = match &replaced {
            Some(stat) if !exchanges && !flags.contains(RenameFlags::NOREPLACE) => {
                locked.prepare_loss(&to, stat)?
            }
            _ => None,
        };
        let (from_dir, to_dir) = (locked.directory(from.dir)?, locked.directory(to.dir)?);
        renameat_with(from_dir, from.name, to_dir, to.name, flags)?;
        // Two names of one file: then nothing has happened.
        let is_same = replaced
            .as_ref()
            .is_some_and(|stat| (stat.st_dev, stat.st_ino) == (moved.st_dev, moved.st_ino));
        if !is_same {
            locked.lost(loses, &to);
            if let Some(stat) = &replaced {
                locked.move_name(stat, &to, exchanges.then_some(&from));
                if exchanges {
                    self.changed_stat(&locked, stat)
                } else {
                    self.removed_stat(&locked, stat)
                }
            }
            locked.move_name(&moved, &from, Some(&to));
            self.renamed(&locked, &from);
            self.renamed(&locked, &to);
            self.found_at(&locked, &moved, &to);
            if let Some(stat) = replaced.as_ref().filter(|_| exchanges) {
                self.found_at(&locked, stat, &from);
            }
        }
        Ok(done())
    }

    /// A name that may be changed or removed. One that is hidden does not exist.
    fn changeable<'a>(
        &self,
        locked: &mut Locked,
        header: &Header,
        name: &'a [u8],
        action: Action,
    ) -> Result<Place<'a>, Errno> {
        let place = locked.place(header.node, name)?;
        match place.permission {
            Permission::Write => Ok(place),
            _ => Err(self.refuse_name(locked, header, &place, action)),
        }
    }

    fn changed_stat(&self, locked: &Locked, stat: &Stat) {
        let file = key(stat, Permission::Write).file();
        let written = locked.table.find(key(stat, Permission::Write));
        let twins = locked.table.nodes_of(file).iter();
        twins.filter(|twin| Some(**twin) != written).for_each(|twin| self.notices.add(*twin));
        self.peers.tell(&Told::File(file));
    }

    /// Where a file is now that was moved.
    fn found_at(&self, locked: &Locked, stat: &Stat, place: &Place<'_>) {
        let Ok(dir) = locked.table.get(place.dir) else { return };
        let (file, dir) = (key(stat, Permission::Write).file(), dir.key.file());
        self.peers.tell(&Told::Found { file, dir, name: place.name.to_vec() });
    }

    /// The same for a file that has lost this name.
    fn removed_stat(&self, locked: &Locked, before: &Stat) {
        self.changed_stat(locked, before);
        if is_directory(before) || before.st_nlink == 1 {
            self.peers.tell(&Told::Part(key(before, Permission::Write).file()));
        }
    }
}

/// A known file that is about to lose a name, and its descriptor if the name is its last.
type Loss = Option<(u64, Option<Arc<OwnedFd>>)>;

impl Locked {
    /// Opens a file before it loses its last name: with zero messages nobody says whether it is in use.
    fn prepare_loss(&mut self, place: &Place<'_>, stat: &Stat) -> Result<Loss, Errno> {
        let Some(id) = self.table.find(key(stat, place.permission)) else { return Ok(None) };
        let node = self.table.get(id)?;
        let is_other =
            |name: &&crate::table::Name| name.dir != place.dir || *name.name != *place.name;
        if node.kept.is_some() || node.names.as_slice().iter().any(|name| is_other(&name)) {
            return Ok(Some((id, None)));
        }
        let kept = match node.kind {
            Kind::File => self.file(id, Access::Write)?,
            Kind::Directory(_) => self.directory(id)?,
            Kind::Symlink | Kind::Special => {
                let dir = self.directory(place.dir)?;
                Arc::new(open_beneath_as_path(&dir, place.name)?)
            }
        };
        Ok(Some((id, Some(kept))))
    }

    fn lost(&mut self, loss: Loss, place: &Place<'_>) {
        let Some((id, kept)) = loss else { return };
        if let Some(kept) = kept {
            self.table.keep(id, kept);
        }
        self.table.remove_name(id, place.dir, place.name);
    }

    /// Records that a known file has left one place for another.
    fn move_name(&mut self, stat: &Stat, from: &Place<'_>, to: Option<&Place<'_>>) {
        let Some(id) = self.table.find(key(stat, from.permission)) else { return };
        if let Some(to) = to {
            self.table.add_name(id, to.dir, to.name);
        }
        self.table.remove_name(id, from.dir, from.name);
    }
}

/// A symbolic link itself, or another file that must not be opened.
fn open_beneath_as_path(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    match open_beneath(dir, name, OFlags::PATH, Mode::empty()) {
        // A link is not followed, but openat2 refuses to name it.
        Err(Errno::LOOP) => {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(dir, name, flags, Mode::empty())
        }
        opened => opened,
    }
}
