//! From a node to its file: always beneath the root, one name at a time, never through a symbolic link or into another
//! mount. The file under a name must still be the one that the kernel was given; otherwise the answer is ESTALE, and
//! the kernel looks the name up again.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, IFlags, Mode, OFlags, ResolveFlags, Stat, fstat, ioctl_getflags, openat2, statat,
};
use rustix::io::Errno;

use super::Locked;
use crate::opened::Access;
use crate::table::Kind;
use crate::wire::ROOT;

/// Names of such a directory match in any case, rules do not.
const CASE_INSENSITIVE: IFlags = IFlags::from_bits_retain(0x4000_0000);

/// Opens a name in a directory, and nothing that it may lead to.
pub fn open_beneath(
    dir: impl AsFd,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    openat2(dir, name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode, resolve)
}

/// A directory, to be read and to find names in.
pub fn open_directory_beneath(dir: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let opened = open_beneath(dir, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    // Not every file system has flags; those that have case-insensitive directories do.
    match ioctl_getflags(&opened) {
        Ok(flags) if flags.contains(CASE_INSENSITIVE) => Err(Errno::ACCESS),
        _ => Ok(opened),
    }
}

impl Locked {
    /// A known directory.
    pub(super) fn directory(&mut self, id: u64) -> Result<Arc<OwnedFd>, Errno> {
        let mut chain = Vec::new();
        let mut at = id;
        let mut opened = loop {
            if at == ROOT {
                break self.opened.root();
            }
            if let Some(opened) = self.opened.get(at, Access::Read) {
                break opened;
            }
            let names = self.table.get(at)?.names.as_slice();
            let name = names.first().cloned().ok_or(Errno::STALE)?;
            let above = name.dir;
            chain.push((at, name.name));
            at = above;
        };
        while let Some((id, name)) = chain.pop() {
            let found = open_directory_beneath(&opened, &name).map_err(gone)?;
            self.verify(id, &fstat(&found)?)?;
            opened = self.opened.add(id, Access::Read, found);
        }
        Ok(opened)
    }

    /// A regular file, to read or write its contents. The caller has checked its permission.
    pub(super) fn file(&mut self, id: u64, access: Access) -> Result<Arc<OwnedFd>, Errno> {
        let node = self.table.get(id)?;
        match node.kind {
            Kind::File => {}
            Kind::Directory(_) => return Err(Errno::ISDIR),
            Kind::Symlink | Kind::Special => return Err(Errno::INVAL),
        }
        if let Some(kept) = &node.kept {
            return Ok(Arc::clone(kept));
        }
        if let Some(opened) = self.opened.get(id, access) {
            return Ok(opened);
        }
        let opened = self.open_file(id, access)?;
        Ok(self.opened.add(id, access, opened))
    }

    fn open_file(&mut self, id: u64, access: Access) -> Result<OwnedFd, Errno> {
        // O_NONBLOCK: if it was replaced by a fifo meanwhile, that must not stop us.
        let flags = OFlags::NONBLOCK
            | match access {
                Access::Read => OFlags::RDONLY,
                Access::Write => OFlags::RDWR,
            };
        let names = self.table.get(id)?.names.as_slice().to_vec();
        let mut failure = Errno::STALE;
        for name in &names {
            let Ok(dir) = self.directory(name.dir) else { continue };
            let opened = open_beneath(&dir, &name.name, flags, Mode::empty());
            // A program that somebody executes outside of the mount.
            let opened = match opened {
                Err(Errno::TXTBSY) => {
                    let flags = flags.difference(OFlags::ACCMODE) | OFlags::RDONLY;
                    open_beneath(&dir, &name.name, flags, Mode::empty())
                }
                opened => opened,
            };
            match opened.and_then(|opened| Ok((fstat(&opened)?, opened))) {
                Ok((stat, opened)) if self.verify(id, &stat).is_ok() => return Ok(opened),
                Ok(_) => {}
                Err(error) => failure = gone(error),
            }
        }
        Err(failure)
    }

    /// A directory or a regular file, for what needs a descriptor but no contents.
    pub(super) fn either(&mut self, id: u64, access: Access) -> Result<Arc<OwnedFd>, Errno> {
        match self.table.get(id)?.kind {
            Kind::Directory(_) => self.directory(id),
            Kind::File => self.file(id, access),
            Kind::Symlink | Kind::Special => Err(Errno::OPNOTSUPP),
        }
    }

    pub(super) fn stat(&mut self, id: u64) -> Result<Stat, Errno> {
        let node = self.table.get(id)?;
        if let Some(kept) = &node.kept {
            return fstat(kept);
        }
        if id == ROOT {
            return fstat(self.opened.root());
        }
        if let Kind::Directory(_) = node.kind
            && let Some(opened) = self.opened.get(id, Access::Read)
        {
            return fstat(opened);
        }
        let names = self.table.get(id)?.names.as_slice().to_vec();
        for name in &names {
            let Ok(dir) = self.directory(name.dir) else { continue };
            if let Ok(stat) = statat(dir.as_fd(), &*name.name, AtFlags::SYMLINK_NOFOLLOW)
                && self.verify(id, &stat).is_ok()
            {
                return Ok(stat);
            }
        }
        // Somebody else has removed it while it is open here.
        let opened = [Access::Write, Access::Read].map(|access| self.opened.get(id, access));
        opened.into_iter().flatten().next().map_or(Err(Errno::STALE), fstat)
    }

    fn verify(&self, id: u64, stat: &Stat) -> Result<(), Errno> {
        let key = self.table.get(id)?.key;
        if (key.device, key.inode) == (stat.st_dev, stat.st_ino) {
            Ok(())
        } else {
            Err(Errno::STALE)
        }
    }
}

/// A known name that is gone, or that leads elsewhere now, was changed by somebody else.
fn gone(error: Errno) -> Errno {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Errno::STALE,
        other => other,
    }
}
