//! Templates: what sandboxes are created from.

pub mod certificates;
pub mod copying;
mod host;
mod host_name;
pub mod identity;
pub mod image;
mod image_template;
pub mod layer;
pub mod manifest;
pub mod recipe;
mod resolver;
pub mod source;
mod workdir;
pub mod workspace;

use std::sync::Arc;

use async_trait::async_trait;

use sandkeep_core::{Privilege, SandboxId};
use sandkeep_storage::StorageError;
use sandkeep_tree::{Bind, Root};

pub use host::HostTemplate;
pub use image_template::ImageTemplate;
pub use workdir::{MountTarget, TargetKind, make_workdir};

/// Whether a template contains something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contains {
    Yes,
    No,
    /// Nobody has checked.
    Unknown,
}

/// # Behavior
/// - A template is ready when it is passed to the broker and does not change while a sandbox of it exists.
#[async_trait]
pub trait Template: Send + Sync {
    /// Its name for callers.
    fn name(&self) -> &str;

    /// Directories of the host that are visible in every sandbox of this template, read-only, on top of its root.
    fn binds(&self) -> Arc<[Bind]>;

    /// Whether a sandbox of this template has a program with this name.
    fn has_program(&self, name: &str) -> Contains;

    /// The default privilege of a sandbox.
    fn default_privilege(&self) -> Privilege;

    /// Writes the template's own files to the new root of a sandbox, including every target of `binds` and the files
    /// with the host name. Existing files of the layers below are unchanged. May be repeated on a root that was
    /// completely or partly filled before.
    async fn lay_out(&self, root: &Root, id: &SandboxId) -> Result<(), StorageError>;
}
