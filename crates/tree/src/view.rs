//! A readable file tree on the host: the directory of a volume, of a snapshot or of a layer, or several of them merged
//! like an overlay. Nothing is mounted, and only permission to read the files is needed.
//!
//! The tree is not trusted. Every lookup is of one name in one directory, below a descriptor; the kernel follows no
//! link and crosses no mount. [`View::resolve`] follows links, with absolute ones starting at the root of the tree.
//!
//! The tree may change while it is read. Then results are from different moments: a name that is gone when it is looked
//! up does not exist, and nothing is read without end, because the total cost is limited by an [`Effort`].

mod node;

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, openat};

use super::beneath;
use super::tree_path::Met;
use super::{Effort, Root, TreePath};
pub use node::is_opaque;
pub use node::{Entry, Node};

/// A readable tree.
pub struct View {
    /// Topmost first; never empty.
    trees: Vec<OwnedFd>,
    effort: Effort,
    /// Must stay alive while the tree is read.
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

/// How a link at the end of a path is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Followed like those on the way, as with `stat`.
    Followed,
    /// Returned itself, as with `lstat`.
    Itself,
}

impl View {
    /// A single directory.
    pub fn of_dir(path: &Path) -> io::Result<Self> {
        Ok(Self::of_trees(vec![open_tree(path)?]))
    }

    /// A sandbox's view of its root, without mounts.
    pub fn of_root(root: &Root) -> io::Result<Self> {
        match root {
            Root::Dir(path) | Root::Shifted(path) => Self::of_dir(path),
            Root::Overlay { lowers, upper, .. } => {
                let trees = std::iter::once(upper).chain(lowers.iter().rev());
                Ok(Self::of_trees(trees.map(|path| open_tree(path)).collect::<io::Result<_>>()?))
            }
        }
    }

    /// Directories merged like an overlay, topmost first. A single one is shown unchanged; an empty list is an empty,
    /// unreadable tree.
    pub fn of_trees(trees: Vec<OwnedFd>) -> Self {
        Self { trees, effort: Effort::default(), _kept: None }
    }

    /// The tree below a directory in the root of this one.
    pub fn below(self, name: &[u8]) -> io::Result<Self> {
        let open = |tree: &OwnedFd| beneath::open(tree, name, OFlags::PATH | OFlags::DIRECTORY);
        let trees = self.trees.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { trees, ..self })
    }

    /// Uses this budget for all reading.
    pub fn within(mut self, effort: &Effort) -> Self {
        self.effort = effort.clone();
        self
    }

    /// Keeps something alive as long as this: a lock, or a guard that removes the tree.
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> Self {
        let before = self._kept.take();
        self._kept = Some(Box::new((before, kept)));
        self
    }

    /// The root directory.
    pub fn root(&self) -> io::Result<Node> {
        Node::of_trees(&self.trees, &self.effort)
    }

    /// The entry at a path; no link in it is followed, so a link on the way leads nowhere.
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

    /// A path with its links resolved within the tree: an absolute link starts at its root, and none leads outside.
    /// `None` if there is no such entry.
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
