//! The contents of files. The permission is checked with every request, so that new rules also apply to open files.
//! Data are transferred without the lock.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, Mode as FileMode, OFlags, SeekFrom, fdatasync, fsync};
use rustix::io::Errno;
use sandkeep_core::limits;
use sandkeep_core::rules::Permission;
use sandkeep_sys::fuse;

use super::attributes::drop_set_ids;
use super::{Answer, Filesystem, Handled, Locked, done};
use crate::control::{Action, Mode, Writers};
use crate::journal::{Backed, Record};
use crate::opened::Access;
use crate::peers::Told;
use crate::table::Kind;
use crate::wire::{self, Fields, Header, Reply, open};

/// Of an open's flags: how the file is opened, and the flag of an open for execution.
const ACCESS_MODE: u32 = 0b11;

impl Filesystem {
    /// With zero messages the first answer says that there will be no more such requests.
    pub(super) fn open(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        if self.mode == Mode::ZeroMessage {
            return Err(Errno::NOSYS);
        }
        let flags = fields.u32()?;
        let mut locked = self.lock();
        let permission = locked.table.get(header.node)?.key.permission;
        let wanted = match flags & ACCESS_MODE {
            0 => Permission::Read,
            _ => Permission::Write,
        };
        if permission < wanted {
            return Err(self.refuse(&mut locked, header, header.node, Action::Open));
        }
        let access = match wanted {
            Permission::Write => Access::Write,
            _ => Access::Read,
        };
        self.opened(&mut locked, header.node, access).map(Answer::Reply)
    }

    pub(super) fn open_directory(&self, header: &Header) -> Handled {
        if self.mode == Mode::ZeroMessage {
            return Err(Errno::NOSYS);
        }
        let locked = self.lock();
        if locked.is_closed(header.node)? {
            return Err(Errno::ACCESS);
        }
        let flags = match locked.written.writers() {
            Writers::Tell => open::CACHE_DIR | open::KEEP_CACHE,
            Writers::Silent => 0,
        };
        Ok(Answer::Reply(Reply::default().u64(0).u32(flags).u32(0)))
    }

    /// The part of an answer that is about an open file.
    pub(super) fn opened(
        &self,
        locked: &mut Locked,
        id: u64,
        access: Access,
    ) -> Result<Reply, Errno> {
        if self.mode == Mode::ZeroMessage {
            // A handle would never be released.
            return Ok(Reply::default().u64(0).u32(open::KEEP_CACHE).u32(0));
        }
        let known = locked.backings.get(&id).copied();
        let mut backed = match known {
            Some(backed) => backed,
            None => {
                // One for all: what the user may do with it, the kernel takes from the user's own flags.
                let file = locked.file(id, Access::Read)?;
                let backing = fuse::backing_open(&self.connection, file).map_err(errno)?;
                Backed { backing, opens: 0, writers: 0 }
            }
        };
        backed.opens += 1;
        if access == Access::Write {
            backed.writers += 1;
            if backed.writers == 1 {
                self.peers.tell(&Told::Writing(locked.table.get(id)?.key.file()));
            }
        }
        locked.set_backed(id, backed);
        let flags = open::PASSTHROUGH | open::NOFLUSH;
        Ok(Reply::default().u64(id).u32(flags).u32(backed.backing))
    }

    pub(super) fn release(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        fields.u64()?;
        let flags = fields.u32()?;
        let mut locked = self.lock();
        let id = header.node;
        let Some(mut backed) = locked.backings.get(&id).copied() else { return Ok(done()) };
        backed.opens = backed.opens.saturating_sub(1);
        if flags & ACCESS_MODE != 0 {
            backed.writers = backed.writers.saturating_sub(1);
            if backed.writers == 0 {
                self.peers.tell(&Told::Written(locked.table.get(id)?.key.file()));
                self.tell_twins(&locked, id);
            }
        }
        locked.set_backed(id, backed);
        if backed.opens == 0 {
            fuse::backing_close(&self.connection, backed.backing).map_err(errno)?;
        }
        Ok(done())
    }

    /// Whether the kernel can read and write files of this tree by itself; not on every file system.
    pub fn check_passthrough(&self) -> Result<(), Errno> {
        let root = self.lock().opened.root();
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(root, ".", flags, FileMode::RUSR)?;
        let backing = fuse::backing_open(&self.connection, file).map_err(errno)?;
        fuse::backing_close(&self.connection, backing).map_err(errno)
    }

    pub(super) fn read(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        fields.u64()?;
        let (offset, size) = (fields.u64()?, fields.u32()? as usize);
        let file = self.contents(header, Access::Read, Action::Read)?;
        let mut reply = Reply::with_zeroes(size.min(limits::RULEFS_WRITE_MAX_BYTES));
        let mut done = 0;
        while done < reply.len() {
            match rustix::io::pread(&file, &mut reply.body()[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        reply.truncate(done);
        self.let_go(header.node);
        Ok(Answer::Reply(reply))
    }

    pub(super) fn write(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        fields.u64()?;
        let (offset, size, flags) = (fields.u64()?, fields.u32()? as usize, fields.u32()?);
        fields.skip(16)?;
        let data = fields.skip(size)?;
        let file = self.contents(header, Access::Write, Action::Write)?;
        if flags & wire::WRITE_KILL_SUIDGID != 0 {
            drop_set_ids(&file)?;
        }
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&file, &data[done..], offset + done as u64) {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                // A full disk takes a part: the kernel writes the rest again and gets the error then.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        self.changed(&mut self.lock(), header.node);
        Ok(Answer::Reply(Reply::default().u32(done as u32).u32(0)))
    }

    pub(super) fn sync(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        const DATA_ONLY: u32 = 1;
        fields.u64()?;
        let flags = fields.u32()?;
        let file = {
            let mut locked = self.lock();
            let access = locked.access(header.node)?;
            locked.either(header.node, access)?
        };
        match flags & DATA_ONLY {
            0 => fsync(file)?,
            _ => fdatasync(file)?,
        }
        Ok(done())
    }

    pub(super) fn allocate(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        fields.u64()?;
        let (offset, len, mode) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let file = self.contents(header, Access::Write, Action::Write)?;
        drop_set_ids(&file)?;
        rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(mode), offset, len)?;
        self.changed(&mut self.lock(), header.node);
        Ok(done())
    }

    pub(super) fn seek(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        fields.u64()?;
        let (offset, whence) = (fields.u64()?, fields.u32()?);
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let to = match whence {
            SEEK_DATA => SeekFrom::Data(offset),
            SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        };
        let file = self.contents(header, Access::Read, Action::Read)?;
        Ok(Answer::Reply(Reply::default().u64(rustix::fs::seek(file, to)?)))
    }

    pub(super) fn copy_range(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        fields.u64()?;
        let (mut from, target) = (fields.u64()?, fields.u64()?);
        fields.u64()?;
        let (mut to, len) = (fields.u64()?, fields.u64()?);
        let source = self.contents(header, Access::Read, Action::Read)?;
        let header = Header { node: target, ..*header };
        let file = self.contents(&header, Access::Write, Action::Write)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(u32::MAX as usize);
        let copied =
            rustix::fs::copy_file_range(source, Some(&mut from), file, Some(&mut to), len)?;
        self.changed(&mut self.lock(), target);
        Ok(Answer::Reply(Reply::default().u32(copied as u32).u32(0)))
    }

    /// A file whose contents the rules let this request have.
    fn contents(
        &self,
        header: &Header,
        access: Access,
        action: Action,
    ) -> Result<Arc<OwnedFd>, Errno> {
        let mut locked = self.lock();
        let permission = locked.table.get(header.node)?.key.permission;
        let wanted = match access {
            Access::Read => Permission::Read,
            Access::Write => Permission::Write,
        };
        if permission < wanted {
            return Err(self.refuse(&mut locked, header, header.node, action));
        }
        let access = locked.access(header.node)?;
        locked.file(header.node, access)
    }

    /// Other nodes of a file that was changed have pages and attributes of their own in the kernel, and so it has in the
    /// other kernels' views: those of the other sandboxes on this tree.
    pub(super) fn changed(&self, locked: &mut Locked, id: u64) {
        let Ok(node) = locked.table.get(id) else { return };
        self.peers.tell(&Told::File(node.key.file()));
        self.tell_twins(locked, id);
    }

    fn tell_twins(&self, locked: &Locked, id: u64) {
        let Ok(node) = locked.table.get(id) else { return };
        let twins = locked.table.nodes_of(node.key.file()).iter();
        twins.filter(|twin| **twin != id).for_each(|twin| self.notices.add(*twin));
    }

    /// Has the kernel drop pages that it is about to be given, if somebody else may be writing the file unseen.
    fn let_go(&self, id: u64) {
        let locked = self.lock();
        let Ok(node) = locked.table.get(id) else { return };
        if locked.written.is_volatile(node.key.file()) {
            // It waits until the pages have been answered.
            self.notices.add(id);
        }
    }
}

impl Locked {
    fn set_backed(&mut self, id: u64, backed: Backed) {
        self.table.record(|| Record::Backing((id, backed)));
        match backed.opens {
            0 => drop(self.backings.remove(&id)),
            _ => drop(self.backings.insert(id, backed)),
        }
    }

    /// One descriptor serves all requests about a node: the one that its permission allows.
    pub(super) fn access(&self, id: u64) -> Result<Access, Errno> {
        let node = self.table.get(id)?;
        Ok(match (&node.kind, node.key.permission) {
            (Kind::File, Permission::Write) => Access::Write,
            _ => Access::Read,
        })
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
