//! Whiteouts: names by which a layer hides lower entries. They never hide entries of the same layer, so their position
//! in the archive does not matter.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode, OFlags, XattrFlags, fsetxattr, fstat, mknodat};
use rustix::io::Errno;

use super::LayerError;
use super::applying::{Applying, at};
use super::removing::remove;
use super::view::{FoundEntry, file_type};
use sandkeep_storage::Whiteouts;
use sandkeep_tree::{
    OPAQUE,
    beneath::{self, open_dir},
    tree_path::TreePath,
    untrusted,
};

const PREFIX: &[u8] = b".wh.";
/// Internal entries of aufs have the prefix twice; one of these is a mark, the others have no meaning.
const META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";

/// The meaning of an entry's name for the layers below.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mark<'a> {
    /// None: an ordinary entry.
    None,
    Hides(&'a [u8]),
    /// Hides everything that the directory has below.
    Opaque,
    /// A leftover of an old storage driver.
    Meaningless,
    /// It would hide a directory from within itself.
    Nonsense,
}

impl<'a> Mark<'a> {
    pub(super) fn of(name: &'a [u8]) -> Self {
        match name.strip_prefix(PREFIX) {
            None => Self::None,
            Some(_) if name == OPAQUE_NAME => Self::Opaque,
            Some(_) if name.starts_with(META_PREFIX) => Self::Meaningless,
            Some(b"" | b"." | b"..") => Self::Nonsense,
            Some(hidden) => Self::Hides(hidden),
        }
    }
}

impl Applying<'_> {
    /// Hides one name of a directory.
    pub(super) fn hide(&mut self, directory: &TreePath, name: &[u8]) -> Result<(), LayerError> {
        let directory = self.resolve(directory)?;
        let path = self.join(&directory, name)?;
        let os = |error: Errno| at(&path, error.into());
        match beneath::open(self.view.upper, path.bytes(), OFlags::PATH) {
            Ok(node) if self.is_ours(&path) => match file_type(&fstat(&node).map_err(os)?) {
                FileType::Directory => self.make_opaque(&path),
                _ => Ok(()),
            },
            // Only if the directory contains the tree below can an entry exist that is not ours.
            Ok(_) => {
                let parent = self.enter(&directory)?;
                self.forget_parent();
                remove(self.view.upper, parent.as_fd(), name).map_err(|error| at(&path, error))
            }
            Err(Errno::NOENT | Errno::NOTDIR) => self.hide_below(&directory, &path, name),
            Err(error) => Err(os(error)),
        }
    }

    /// Hides a name that this layer does not have, whether or not the layers below do.
    fn hide_below(
        &mut self,
        directory: &TreePath,
        path: &TreePath,
        name: &[u8],
    ) -> Result<(), LayerError> {
        if self.view.whiteouts == Whiteouts::Remove {
            return Ok(());
        }
        match self.look(directory)? {
            FoundEntry::Nowhere => Ok(()),
            FoundEntry::Here(_) | FoundEntry::Below(_) => {
                let parent = self.enter(directory)?;
                make_whiteout(&parent, name).map_err(|error| at(path, error.into()))
            }
        }
    }

    /// Hides everything that a directory has below.
    pub(super) fn hide_all(&mut self, directory: &TreePath) -> Result<(), LayerError> {
        let directory = self.resolve(directory)?;
        match self.look(&directory)? {
            FoundEntry::Nowhere => Ok(()),
            FoundEntry::Here(_) | FoundEntry::Below(_) => self.make_opaque(&directory),
        }
    }

    fn make_opaque(&mut self, directory: &TreePath) -> Result<(), LayerError> {
        // Either way the layer now has an entry for it, with its previous time.
        let entered = self.enter(directory)?;
        match self.view.whiteouts {
            Whiteouts::Remove => self.remove_what_is_not_ours(directory),
            Whiteouts::Overlay => {
                mark_opaque(&entered).map_err(|error| at(directory, error.into()))
            }
        }
    }

    /// Descends only into directories that this layer has touched, so a path is never longer than a layer's may be.
    fn remove_what_is_not_ours(&mut self, top: &TreePath) -> Result<(), LayerError> {
        self.forget_parent();
        let mut pending = vec![top.clone()];
        while let Some(path) = pending.pop() {
            let directory = open_dir(self.view.upper, path.bytes());
            let directory = directory.map_err(|error| at(&path, error.into()))?;
            for (name, kind) in
                untrusted::entries(&directory).map_err(|error| at(&path, error.into()))?
            {
                // A name that makes the path too long does not belong to this layer.
                let child = path.join(name.to_bytes()).ok().filter(|child| self.is_ours(child));
                match child {
                    Some(child) if kind == FileType::Directory => pending.push(child),
                    Some(_) => {}
                    None => remove(self.view.upper, directory.as_fd(), name.to_bytes())
                        .map_err(|error| at(&path, error))?,
                }
            }
        }
        Ok(())
    }
}

/// The overlay's whiteout. Every user may create this one device.
pub(super) fn make_whiteout(directory: impl AsFd, name: &[u8]) -> rustix::io::Result<()> {
    mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0)
}

pub(super) fn mark_opaque(directory: impl AsFd) -> rustix::io::Result<()> {
    fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_whiteouts_are_told_from_files() {
        assert_eq!(Mark::of(b"file"), Mark::None);
        assert_eq!(Mark::of(b"a.wh.b"), Mark::None);
        assert_eq!(Mark::of(b".wh.file"), Mark::Hides(b"file"));
        assert_eq!(Mark::of(b".wh..hidden"), Mark::Hides(b".hidden"));
        assert_eq!(Mark::of(b".wh..wh..opq"), Mark::Opaque);
        assert_eq!(Mark::of(b".wh..wh.plnk"), Mark::Meaningless);
        for nonsense in [b".wh.".as_slice(), b".wh..", b".wh..."] {
            assert_eq!(Mark::of(nonsense), Mark::Nonsense);
        }
    }
}
