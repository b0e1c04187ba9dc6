//! Path lookup while a layer is applied: in the layer's own directory and, for an overlay, in the visible parts of
//! those below.
//!
//! The kernel never follows a link here: each lookup is of one name in one directory. [`View::resolve`] follows links
//! itself: absolute ones start at the layer's root, and `..` cannot leave it. So a path has the same meaning as in a
//! sandbox with the layer as root.

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

/// The layer's directory on top of the ones below.
pub(super) struct View<'a> {
    pub(super) upper: BorrowedFd<'a>,
    pub(super) whiteouts: Whiteouts,
    /// Lowest first.
    pub(super) lowers: &'a [OwnedFd],
    /// Whether any answer has depended on those below.
    pub(super) asked_below: Cell<bool>,
}

/// Where an entry was found.
pub(super) enum FoundEntry {
    Nowhere,
    /// In the layer's own directory.
    Here(Node),
    /// In one below.
    Below(Node),
}

/// A file, as an `O_PATH` descriptor.
pub(super) struct Node {
    pub(super) fd: OwnedFd,
    pub(super) stat: Stat,
}

/// The answer of one tree about a path.
enum Said {
    This(Node),
    /// It does not exist, and lower entries are hidden.
    Hidden,
    /// The lower layers decide.
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
    /// The entry at a path without links.
    pub(super) fn look(&self, path: &TreePath) -> rustix::io::Result<FoundEntry> {
        match self.ask(self.upper, path)? {
            Said::This(node) => return Ok(FoundEntry::Here(node)),
            Said::Hidden => return Ok(FoundEntry::Nowhere),
            Said::Nothing => {}
        }
        // That nothing exists is an answer, too.
        self.asked_below.set(true);
        for lower in self.lowers.iter().rev() {
            match self.ask(lower.as_fd(), path)? {
                Said::This(node) => return Ok(FoundEntry::Below(node)),
                Said::Hidden => return Ok(FoundEntry::Nowhere),
                Said::Nothing => {}
            }
        }
        Ok(FoundEntry::Nowhere)
    }

    /// Looks a path up in one tree like an overlay: name by name, honouring whiteouts.
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

    /// The path of a directory with its links resolved. The directory need not exist.
    pub(super) fn resolve(&self, path: &TreePath) -> Result<TreePath, LookupError> {
        // Nearly always it is a directory of this layer, without links on the way.
        if open(self.upper, path.bytes(), OFlags::PATH | OFlags::DIRECTORY).is_ok() {
            return Ok(path.clone());
        }
        let followed = path.followed(|next, _| {
            let (FoundEntry::Here(node) | FoundEntry::Below(node)) = self.look(next)? else {
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
