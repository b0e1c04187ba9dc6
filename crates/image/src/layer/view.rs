//! What a path leads to while a layer is applied: in the layer's own directory and, if it will lie upon
//! others in an overlay, in those below as far as they show through.
//!
//! The kernel never follows a link here: each lookup is of one name in one directory. Links are followed
//! by [`View::resolve`], which starts again from the layer's root where a link is absolute and stays there
//! where one leads up too far. So a path means what it will mean in a sandbox that has the layer as root.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, OFlags, Stat, fstat, readlinkat};
use rustix::io::Errno;

use sandkeep_storage::Whiteouts;
pub(super) use sandkeep_tree::is_whiteout;
use sandkeep_tree::{
    beneath::open,
    tree_path::{Met, PathProblem, TreePath},
    view::is_opaque,
};

pub(super) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The layer's directory upon the ones below.
pub(super) struct View<'a> {
    pub(super) upper: BorrowedFd<'a>,
    pub(super) whiteouts: Whiteouts,
    /// Lowest first.
    pub(super) lowers: &'a [OwnedFd],
    /// Whether any answer has depended on those below.
    pub(super) asked_below: Cell<bool>,
}

/// Where something was found, if anywhere.
pub(super) enum Found {
    Nowhere,
    /// In the layer's own directory.
    Here(Node),
    /// In one below.
    Below(Node),
}

/// A file by a descriptor that can only be looked at.
pub(super) struct Node {
    pub(super) fd: OwnedFd,
    pub(super) stat: Stat,
}

/// What one tree of several says about a path.
enum Said {
    This(Node),
    /// It is not there, and what lies below cannot be seen.
    Hidden,
    /// Whatever lies below.
    Nothing,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    #[error(transparent)]
    Path(#[from] PathProblem),
    #[error("{through} on its way is not a directory")]
    NotADirectory { through: String },
    #[error(transparent)]
    Os(#[from] Errno),
}

impl View<'_> {
    /// What a path without links in it is.
    pub(super) fn look(&self, path: &TreePath) -> rustix::io::Result<Found> {
        match self.ask(self.upper, path)? {
            Said::This(node) => return Ok(Found::Here(node)),
            Said::Hidden => return Ok(Found::Nowhere),
            Said::Nothing => {}
        }
        // That nothing is there is an answer, too.
        self.asked_below.set(true);
        for lower in self.lowers.iter().rev() {
            match self.ask(lower.as_fd(), path)? {
                Said::This(node) => return Ok(Found::Below(node)),
                Said::Hidden => return Ok(Found::Nowhere),
                Said::Nothing => {}
            }
        }
        Ok(Found::Nowhere)
    }

    /// Asks one tree, as an overlay does: name by name, minding the marks.
    fn ask(&self, tree: BorrowedFd<'_>, path: &TreePath) -> rustix::io::Result<Said> {
        let mut fd = open(tree, b"", OFlags::PATH)?;
        let mut stat = fstat(&fd)?;
        let mut opaque = false;
        for part in path.parts() {
            if file_type(&stat) != FileType::Directory {
                return Ok(Said::Hidden);
            }
            opaque |= self.whiteouts == Whiteouts::Overlay && is_opaque(&fd)?;
            fd = match open(&fd, part, OFlags::PATH) {
                Ok(next) => next,
                Err(Errno::NOENT) if opaque => return Ok(Said::Hidden),
                Err(Errno::NOENT) => return Ok(Said::Nothing),
                Err(error) => return Err(error),
            };
            stat = fstat(&fd)?;
            if is_whiteout(&stat) {
                return Ok(Said::Hidden);
            }
        }
        Ok(Said::This(Node { fd, stat }))
    }

    /// The path of a directory without the links in it. The directory need not be there.
    pub(super) fn resolve(&self, path: &TreePath) -> Result<TreePath, LookupError> {
        // Nearly always it is a directory of this layer, and no link is in the way.
        if open(self.upper, path.bytes(), OFlags::PATH | OFlags::DIRECTORY).is_ok() {
            return Ok(path.clone());
        }
        let followed = path.followed(|next, _| {
            let (Found::Here(node) | Found::Below(node)) = self.look(next)? else {
                return Ok(Met::Something);
            };
            match file_type(&node.stat) {
                FileType::Directory => Ok(Met::Something),
                FileType::Symlink => {
                    let target = readlinkat(&node.fd, c"", Vec::new())?.into_bytes();
                    Ok(Met::Link { target })
                }
                _ => Err(LookupError::NotADirectory { through: next.shown() }),
            }
        })?;
        Ok(followed.unwrap_or_default())
    }
}
