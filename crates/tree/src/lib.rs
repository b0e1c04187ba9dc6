//! Untrusted file trees, read and described on the host: roots of volumes and views of them, paths below them, archives
//! of them with their digests, and differences between two of them.

pub mod apply;
pub mod archive;
pub mod beneath;
pub mod diff;
pub mod digest;
pub mod effort;
mod root;
mod sparse_copy;
pub mod tree_path;
pub mod untrusted;
pub mod view;

pub use effort::{Effort, GivenUp};
pub use root::{
    Bind, Ids, MOUNT_POINTS, OPAQUE, OVERLAY_ATTRIBUTES, Root, RootKind, give_to, is_whiteout,
};
pub use sparse_copy::copy_data;
pub use tree_path::TreePath;
pub use view::{Entry, Node, View};
