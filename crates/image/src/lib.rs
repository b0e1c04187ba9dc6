//! What a sandbox starts from.

pub mod copying;
mod host;
mod host_name;
pub mod identity;
pub mod image;
mod image_template;
pub mod layer;
pub mod manifest;
pub mod recipe;
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
pub use workdir::make_workdir;

/// Whether a template has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Yes,
    No,
    /// Nobody has looked into it.
    Unknown,
}

/// # Behavior
/// - A template is ready when it is handed to the broker and does not change while a sandbox of
///   it exists.
#[async_trait]
pub trait Template: Send + Sync {
    /// As callers name it.
    fn name(&self) -> &str;

    /// What every sandbox of this template sees of the host, read-only, on top of its root.
    fn binds(&self) -> Arc<[Bind]>;

    /// Whether a sandbox of this template finds a program of this name.
    fn has_program(&self, name: &str) -> Found;

    /// The privilege of a sandbox that asks for none in particular.
    fn default_privilege(&self) -> Privilege;

    /// Puts the template's own files into the new root of a sandbox, every target of `binds` and the files that name the
    /// host among them. What the layers beneath the root have already stays as it is.
    /// May be repeated on a root it has filled before, by half or whole.
    async fn lay_out(&self, root: &Root, id: &SandboxId) -> Result<(), StorageError>;
}
