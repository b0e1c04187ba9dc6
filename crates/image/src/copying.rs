//! Files that a build copies: from the build context, or from another tree, to a place in the tree being built. The
//! result is an archive, applied like any layer.
//!
//! ```text
//! Files: Context (an index of the uploaded archive)
//!        View    (the layers of a stage or an image)       ─▶ Plan ─▶ archive ─▶ layer
//!                                                               └──▶ input of the cache key
//! ```
//!
//! Neither tree is trusted. Links are followed within them, and never out; nothing in them is executed. Existing
//! entries stay as they are: an existing directory is copied into, and keeps its mode and owner.

mod context;
mod owner;
mod plan;
mod tree;
mod writing;

use std::io::{self, Read};

use sandkeep_tree::{
    TreePath,
    archive::{ArchiveError, Attributes},
    digest::Digest,
    tree_path::PathProblem,
};

pub use context::{BUILD_FILE_APART, Context, SECRET};
pub use owner::{Ids, ids_of};
pub use plan::{Plan, Planner};

/// Where files are copied from.
pub trait Files: Send + Sync {
    /// The entry at a path without links.
    fn look(&self, path: &TreePath) -> io::Result<Option<Seen>>;

    /// The path with all links resolved, including its last name; none leads outside.
    fn resolve(&self, path: &TreePath) -> io::Result<Option<TreePath>>;

    /// The names in a directory, in byte order.
    fn names(&self, directory: &TreePath) -> io::Result<Vec<Vec<u8>>>;

    fn open(&self, file: &TreePath) -> io::Result<Box<dyn Read + Send>>;

    /// The digest of a file's content.
    fn digest(&self, file: &TreePath) -> io::Result<Digest>;
}

/// The entry at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: SeenKind,
    pub attributes: Attributes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeenKind {
    Directory,
    File {
        size_bytes: u64,
    },
    Symlink {
        target: Vec<u8>,
    },
    /// A pipe, a socket or a device: it is not copied.
    Other,
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("{path:?} is not there")]
    Missing { path: String },
    #[error("{pattern:?} matches nothing")]
    NoMatch { pattern: String },
    #[error("{path:?} is neither a file nor a directory")]
    NotAFile { path: String },
    #[error("several files go to {to:?}: it must end with /")]
    NotADirectory { to: String },
    #[error("{path:?} is {there} already, and cannot become {wanted}")]
    InTheWay { path: String, there: &'static str, wanted: &'static str },
    #[error("{path:?} cannot be copied: no layer can hold a name that begins with .wh.")]
    Whiteout { path: String },
    #[error("{name:?} is not the name of a {what} in {file}; give a number, or make it first")]
    Nobody { name: String, what: &'static str, file: &'static str },
    #[error("{path:?}: {problem}")]
    Path { path: String, problem: PathProblem },
    #[error("there are more than {max} files")]
    TooMany { max: u64 },
    #[error("what came with the build file has {what}, and more than {max} are not taken")]
    ContextTooLarge { what: &'static str, max: usize },
    #[error("there are more than {max} secrets")]
    TooManySecrets { max: usize },
    #[error("the secret {id:?} has more than {max} bytes")]
    SecretTooLarge { id: String, max: u64 },
    #[error("there is no {file:?} in what came with it")]
    NoBuildFile { file: String },
    #[error("{file:?} is no text")]
    NotText { file: String },
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("cannot read {what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

impl CopyError {
    fn reading(what: &TreePath) -> impl FnOnce(io::Error) -> Self {
        let what = what.shown();
        move |source| Self::Io { what, source }
    }
}

#[cfg(test)]
mod tests;
