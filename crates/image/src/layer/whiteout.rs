//! Whiteouts: names by which a layer says that something below it is gone. They hide layers below and
//! nothing of the layer they are in, so their place in the archive does not matter.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode, OFlags, XattrFlags, fsetxattr, fstat, mknodat};
use rustix::io::Errno;

use super::LayerError;
use super::applying::{Applying, at};
use super::removing::remove;
use super::view::{Found, file_type};
use sandkeep_storage::Whiteouts;
use sandkeep_tree::{
    OPAQUE,
    beneath::{self, open_dir},
    tree_path::TreePath,
    untrusted,
};

const PREFIX: &[u8] = b".wh.";
/// What aufs kept for itself has two of the prefix; one of these is a mark, the others mean nothing.
const META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";

/// What the name of an entry says about the layers below.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mark<'a> {
    /// Nothing: it is a file of its own.
    None,
    Hides(&'a [u8]),
    /// All that the directory has below.
    Opaque,
    /// Left over by an old storage driver.
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
            // Only where the directory holds the tree below can something be here and not ours.
            Ok(_) => {
                let parent = self.enter(&directory)?;
                self.forget_parent();
                remove(self.view.upper, parent.as_fd(), name).map_err(|error| at(&path, error))
            }
            Err(Errno::NOENT | Errno::NOTDIR) => self.hide_below(&directory, &path, name),
            Err(error) => Err(os(error)),
        }
    }

    /// Hides a name that this layer does not have. Whether the layers below do have it is not asked.
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
            Found::Nowhere => Ok(()),
            Found::Here(_) | Found::Below(_) => {
                let parent = self.enter(directory)?;
                make_whiteout(&parent, name).map_err(|error| at(path, error.into()))
            }
        }
    }

    /// Hides all that a directory has below.
    pub(super) fn hide_all(&mut self, directory: &TreePath) -> Result<(), LayerError> {
        let directory = self.resolve(directory)?;
        match self.look(&directory)? {
            Found::Nowhere => Ok(()),
            Found::Here(_) | Found::Below(_) => self.make_opaque(&directory),
        }
    }

    fn make_opaque(&mut self, directory: &TreePath) -> Result<(), LayerError> {
        // Either way the layer has it from now on, with the time that it had before.
        let entered = self.enter(directory)?;
        match self.view.whiteouts {
            Whiteouts::Remove => self.remove_what_is_not_ours(directory),
            Whiteouts::Overlay => {
                mark_opaque(&entered).map_err(|error| at(directory, error.into()))
            }
        }
    }

    /// Goes into those directories alone that this layer has touched, so the way is never longer than a path
    /// of the layer may be.
    fn remove_what_is_not_ours(&mut self, top: &TreePath) -> Result<(), LayerError> {
        self.forget_parent();
        let mut pending = vec![top.clone()];
        while let Some(path) = pending.pop() {
            let directory = open_dir(self.view.upper, path.bytes());
            let directory = directory.map_err(|error| at(&path, error.into()))?;
            for (name, kind) in
                untrusted::entries(&directory).map_err(|error| at(&path, error.into()))?
            {
                // A name that makes the path too long is none of this layer's.
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

/// What an overlay takes for "gone". Everybody may make this one device.
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
