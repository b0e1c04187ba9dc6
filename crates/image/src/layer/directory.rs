//! The directories of a layer: found or created on the way to an entry, and completed when no more entries are written
//! into them.

use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, fstat, futimens, mkdirat, statat};
use rustix::io::Errno;

use super::applying::{Applying, at};
use super::removing::remove;
use super::view::{FoundEntry, file_type, is_whiteout};
use super::whiteout::mark_opaque;
use super::{Applied, LayerError, Owners, Stands, attributes};
use sandkeep_core::limits;
use sandkeep_storage::Whiteouts;
use sandkeep_tree::{
    archive::{Attributes, Moment, attributes as found},
    beneath::{self, open_dir},
    tree_path::TreePath,
};

/// The mode of a directory without an entry.
const DIRECTORY_MODE: u32 = 0o755;

/// The directory of the previous entry.
pub(super) struct Parent {
    /// As written in the entry, and without links.
    written: TreePath,
    path: TreePath,
    fd: Rc<OwnedFd>,
}

/// What a directory gets when the layer is complete.
pub(super) enum Pending {
    /// It existed; only its time changed, because an entry in it did.
    Time(Moment),
    All(Attributes),
}

/// How a new directory affects those of the same name in the layers below.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hides {
    Nothing,
    /// It replaces something that hid them.
    WhatIsBelow,
}

impl Applying<'_> {
    pub(super) fn take_directory(
        &mut self,
        path: TreePath,
        parent: &OwnedFd,
        name: &[u8],
        attributes: Attributes,
    ) -> Result<(), LayerError> {
        let there = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        match there {
            Ok(stat) if file_type(&stat) == FileType::Directory => {}
            Ok(_) => {
                self.make_way(&path, parent, name)?;
                self.make_directory(&path, parent, name, Hides::WhatIsBelow)?;
            }
            Err(Errno::NOENT) => self.make_directory(&path, parent, name, Hides::Nothing)?,
            Err(error) => return Err(at(&path, error.into())),
        }
        self.note_directory(path, Pending::All(attributes))
    }

    /// Creates a directory that only its owner can enter, until the end.
    fn make_directory(
        &mut self,
        path: &TreePath,
        parent: &OwnedFd,
        name: &[u8],
        hides: Hides,
    ) -> Result<(), LayerError> {
        let make = || {
            mkdirat(parent, name, Mode::RWXU)?;
            if let Owners::Kept(ids) = self.applied.owners {
                ids.give_to_root(parent, name)?;
            }
            match (self.view.whiteouts, hides) {
                (Whiteouts::Overlay, Hides::WhatIsBelow) => mark_opaque(open_dir(parent, name)?),
                (Whiteouts::Overlay, Hides::Nothing) | (Whiteouts::Remove, _) => Ok(()),
            }
        };
        make().map_err(|error: Errno| at(path, error.into()))
    }

    /// The directory of an entry, created if it is missing.
    pub(super) fn parent(
        &mut self,
        written: &TreePath,
    ) -> Result<(TreePath, Rc<OwnedFd>), LayerError> {
        if let Some(known) = self.parent.as_ref().filter(|known| known.written == *written) {
            return Ok((known.path.clone(), Rc::clone(&known.fd)));
        }
        let path = self.resolve(written)?;
        let fd = Rc::new(self.enter(&path)?);
        let known = Parent { written: written.clone(), path: path.clone(), fd: Rc::clone(&fd) };
        self.parent = Some(known);
        Ok((path, fd))
    }

    pub(super) fn forget_parent(&mut self) {
        self.parent = None;
    }

    /// Opens a directory of this layer. Missing parents are created, with the attributes of the layers below or as
    /// root's, 0755.
    pub(super) fn enter(&mut self, path: &TreePath) -> Result<OwnedFd, LayerError> {
        if self.directories.contains_key(path) {
            let there = open_dir(self.view.upper, path.bytes());
            if !matches!(there, Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) {
                return there.map_err(|error| at(path, error.into()));
            }
        }
        let mut done = TreePath::default();
        let mut directory = self.touch(&done, None)?;
        for part in path.parts() {
            done = self.join(&done, part)?;
            directory = self.touch(&done, Some((&directory, part)))?;
        }
        Ok(directory)
    }

    /// Opens or creates one directory, and records that this layer has it.
    fn touch(
        &mut self,
        path: &TreePath,
        place: Option<(&OwnedFd, &[u8])>,
    ) -> Result<OwnedFd, LayerError> {
        let os = |error: Errno| at(path, error.into());
        let Some((parent, name)) = place else {
            let root = open_dir(self.view.upper, b"").map_err(os)?;
            self.note_existing(path, &root)?;
            return Ok(root);
        };
        let hides = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if file_type(&stat) == FileType::Directory => {
                let there = open_dir(parent, name).map_err(os)?;
                self.note_existing(path, &there)?;
                return Ok(there);
            }
            // It was hidden, but this layer has an entry in it.
            Ok(stat) if is_whiteout(&stat) => {
                remove(self.view.upper, parent.as_fd(), name).map_err(|error| at(path, error))?;
                Hides::WhatIsBelow
            }
            Ok(_) => return Err(os(Errno::NOTDIR)),
            Err(Errno::NOENT) => Hides::Nothing,
            Err(error) => return Err(os(error)),
        };
        let own = match self.look(path)? {
            FoundEntry::Below(node) if hides == Hides::Nothing => {
                let below = beneath::reopen(&node.fd).map_err(os)?;
                found::of(below.as_fd(), &node.stat).map_err(os)?
            }
            FoundEntry::Below(_) | FoundEntry::Here(_) | FoundEntry::Nowhere => {
                Attributes { mode: DIRECTORY_MODE, ..Attributes::default() }
            }
        };
        // It has no entry of its own, so it was not counted.
        self.room.take(0, 1).map_err(|error| at(path, error))?;
        self.make_directory(path, parent, name, hides)?;
        self.note_directory(path.clone(), Pending::All(own))?;
        open_dir(parent, name).map_err(os)
    }

    fn note_existing(&mut self, path: &TreePath, fd: &OwnedFd) -> Result<(), LayerError> {
        if self.directories.contains_key(path) {
            return Ok(());
        }
        let stat = fstat(fd).map_err(|error| at(path, error.into()))?;
        self.note_directory(path.clone(), Pending::Time(found::modified(&stat)))
    }

    fn note_directory(&mut self, path: TreePath, pending: Pending) -> Result<(), LayerError> {
        self.directories_bytes += path.bytes().len();
        if self.directories_bytes > limits::LAYER_DIRECTORIES_MAX_BYTES {
            let max = limits::LAYER_DIRECTORIES_MAX_BYTES as u64;
            return Err(LayerError::TooLarge { what: "bytes in the paths of directories", max });
        }
        self.directories.insert(path, pending);
        Ok(())
    }

    fn stands(&self) -> Result<Stands, LayerError> {
        if self.view.whiteouts == Whiteouts::Remove {
            return Ok(Stands::Alone);
        }
        // If a layer has no entry for its root, it inherits that of the layers below, which must be the default.
        let root = TreePath::default();
        let borrowed = match self.directories.get(&root) {
            Some(Pending::All(_)) => false,
            Some(Pending::Time(_)) | None => {
                let stat = fstat(self.view.upper).map_err(|error| at(&root, error.into()))?;
                let foreign = match self.applied.owners {
                    Owners::Kept(ids) => [stat.st_uid, stat.st_gid] != [ids.on_disk(0); 2],
                    Owners::Ours => false,
                };
                foreign || stat.st_mode & 0o7777 != DIRECTORY_MODE
            }
        };
        if borrowed || self.view.asked_below.get() {
            Ok(Stands::OnWhatIsBelow)
        } else {
            Ok(Stands::Alone)
        }
    }

    /// The layer is complete: directories get their final attributes, deepest first, because one may forbid its owner
    /// to enter it.
    pub(super) fn finish(mut self) -> Result<Applied, LayerError> {
        self.applied.stands = self.stands()?;
        for (path, pending) in std::mem::take(&mut self.directories).into_iter().rev() {
            match open_dir(self.view.upper, path.bytes()) {
                Ok(directory) => settle(&directory, &pending, &mut self.applied)
                    .map_err(|error| at(&path, error.into()))?,
                // Something else has replaced it by now.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(at(&path, error.into())),
            }
        }
        Ok(self.applied)
    }
}

fn settle(directory: &OwnedFd, pending: &Pending, applied: &mut Applied) -> rustix::io::Result<()> {
    match pending {
        Pending::Time(modified) => futimens(directory, &attributes::times(*modified)),
        Pending::All(own) => {
            attributes::clear_xattrs(directory.as_fd(), applied.owners)?;
            attributes::set(directory, own, applied)
        }
    }
}
