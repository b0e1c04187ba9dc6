//! A tree of files on the host, to be read: the directory of a volume, of a snapshot or of a layer, or
//! several of them that an overlay would show as one. Nothing is mounted, and no rights are needed but
//! those to read the files.
//!
//! Who filled the tree is not trusted. Every lookup is of one name in one directory, beneath a
//! descriptor; the kernel follows no link and crosses no mount. Where links are to be followed,
//! [`View::resolve`] does it, and takes an absolute one from the root of the tree.
//!
//! The tree may change while it is read. Then what is told is of this moment or of that: a name that is
//! gone when it is looked at is not there, and nothing is read without end: what all of it may cost is an [`Effort`].

mod node;

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, openat};

use super::tree_path::Met;
use super::{Effort, Root, TreePath};
pub use node::is_opaque;
pub use node::{Entry, Node};

/// A tree that can be read.
pub struct View {
    /// The topmost first; never empty.
    trees: Vec<OwnedFd>,
    effort: Effort,
    /// What must not go away as long as somebody reads.
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

/// What becomes of a link that a path ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// It is followed like those on the way, as by `stat`.
    Followed,
    /// It is what was meant, as by `lstat`.
    Itself,
}

impl View {
    /// One directory, as it is.
    pub fn of_dir(path: &Path) -> io::Result<Self> {
        Ok(Self::of_trees(vec![open_tree(path)?]))
    }

    /// What a sandbox with this root sees of it, without what is mounted there.
    pub fn of_root(root: &Root) -> io::Result<Self> {
        match root {
            Root::Dir(path) | Root::Shifted(path) => Self::of_dir(path),
            Root::Overlay { lowers, upper, .. } => {
                let trees = std::iter::once(upper).chain(lowers.iter().rev());
                Ok(Self::of_trees(trees.map(|path| open_tree(path)).collect::<io::Result<_>>()?))
            }
        }
    }

    /// Directories as an overlay shows them, the topmost first. A single one is shown as it is, and so is
    /// none, which has nothing in it and cannot be read.
    pub fn of_trees(trees: Vec<OwnedFd>) -> Self {
        Self { trees, effort: Effort::default(), _kept: None }
    }

    /// Has whoever reads it keep to a budget, and not to one of its own.
    pub fn within(mut self, effort: &Effort) -> Self {
        self.effort = effort.clone();
        self
    }

    /// Has something live as long as this does: a lock, or what removes the tree when it is dropped.
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> Self {
        let before = self._kept.take();
        self._kept = Some(Box::new((before, kept)));
        self
    }

    /// The root directory.
    pub fn root(&self) -> io::Result<Node> {
        Node::of_trees(&self.trees, &self.effort)
    }

    /// What a path is; no link in it is followed, so that one on the way leads nowhere.
    pub fn look(&self, path: &TreePath) -> io::Result<Option<Node>> {
        let mut node = self.root()?;
        for part in path.parts() {
            node = match node.child(part)? {
                Some(child) => child,
                None => return Ok(None),
            };
        }
        Ok(Some(node))
    }

    /// The path of something without the links that lead to it, which are followed within the tree: an
    /// absolute one begins at its root, and none leads out. `None` if there is nothing.
    pub fn resolve(&self, path: &TreePath, last: Last) -> io::Result<Option<TreePath>> {
        path.followed(|next, is_last| {
            Ok(match self.look(next)? {
                None => Met::Nothing,
                Some(node) if node.kind() != FileType::Symlink => Met::Something,
                Some(_) if is_last && last == Last::Itself => Met::Something,
                Some(node) => Met::Link { target: node.read_link()? },
            })
        })
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("trees", &self.trees).finish_non_exhaustive()
    }
}

fn open_tree(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}
