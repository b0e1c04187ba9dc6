//! Hard links: another name for a file of this layer, or of one below.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, linkat, mknodat, readlinkat, symlinkat};
use rustix::io::Errno;

use super::applying::{Applying, at, create};
use super::view::{FoundEntry, Node, file_type};
use super::{LayerError, attributes};
use sandkeep_tree::{archive::attributes as found, beneath, copy_data, tree_path::TreePath};

impl Applying<'_> {
    /// Adds another name for a file. A file of a lower overlay layer is first copied into this one, as the overlay
    /// itself would do.
    pub(super) fn take_hardlink(
        &mut self,
        path: TreePath,
        target: &[u8],
        refused: &dyn Fn(String) -> LayerError,
    ) -> Result<(), LayerError> {
        let named = String::from_utf8_lossy(target).into_owned();
        let target = TreePath::clean(target).map_err(|problem| refused(problem.to_string()))?;
        let Some((directory, name)) = target.split() else {
            return Err(refused("it links to the root".to_owned()));
        };
        let directory = self.resolve(&directory)?;
        let target = self.join(&directory, name)?;
        let node = match self.look(&target)? {
            FoundEntry::Nowhere => {
                return Err(refused(format!("it links to {named:?}, which is not there")));
            }
            FoundEntry::Here(node) | FoundEntry::Below(node)
                if file_type(&node.stat) == FileType::Directory =>
            {
                return Err(refused(format!("it links to {named:?}, which is a directory")));
            }
            FoundEntry::Here(_) => None,
            FoundEntry::Below(node) => Some(node),
        };
        if target == path {
            return Ok(());
        }
        let from = self.enter(&directory)?;
        if let Some(node) = node {
            self.copy_up(&node, &from, &target)?;
        }
        self.note_file(&target);
        let Some((parent, own_name)) = path.split() else { return Ok(()) };
        let into = self.enter(&parent)?;
        self.make_way(&path, &into, own_name)?;
        linkat(&from, name, &into, own_name, AtFlags::empty())
            .map_err(|error| at(&path, error.into()))?;
        self.note_file(&path);
        Ok(())
    }

    /// Copies a lower file under the same name into this layer. Holes are kept, and the total copied size is limited to
    /// that of a layer.
    fn copy_up(
        &mut self,
        node: &Node,
        directory: &OwnedFd,
        path: &TreePath,
    ) -> Result<(), LayerError> {
        let Some((_, name)) = path.split() else { return Ok(()) };
        let bytes = u64::try_from(node.stat.st_size).unwrap_or(0);
        self.room.take(bytes, 1).map_err(|error| at(path, error))?;
        let mut copy = || -> rustix::io::Result<()> {
            match file_type(&node.stat) {
                FileType::Symlink => {
                    let target = readlinkat(&node.fd, c"", Vec::new())?;
                    symlinkat(target, directory, name)?;
                }
                FileType::RegularFile => return self.copy_file_up(node, directory, name),
                other => mknodat(directory, name, other, Mode::RUSR, 0)?,
            }
            let own = found::plain(&node.stat);
            attributes::set_on_special(directory.as_fd(), name, &own, &mut self.applied)
        };
        copy().map_err(|error| at(path, error.into()))
    }

    fn copy_file_up(
        &mut self,
        node: &Node,
        directory: &OwnedFd,
        name: &[u8],
    ) -> rustix::io::Result<()> {
        let from = beneath::reopen(&node.fd)?;
        let into = create(directory, name)?;
        let size_bytes = u64::try_from(node.stat.st_size).unwrap_or(0);
        let copied = copy_data(&from, &into, size_bytes, &self.copied_up)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::FBIG))?;
        self.applied.bytes += copied;
        let own = found::of(from.as_fd(), &node.stat)?;
        attributes::set(&into, &own, &mut self.applied)
    }
}
