//! Sources of images. One file per source, behind one contract.

mod directory;
mod docker_archive;
mod oci_layout;
mod place;
mod recognize;
pub mod registry;
mod section;
mod spool;
mod tar;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;

use super::image::{Blob, Image, ImageError, Layer, Platform};
use sandkeep_core::limits::IMAGE_INDEX_DEPTH_MAX;
use sandkeep_tree::digest::Digest;

pub use directory::DirectorySource;
pub use docker_archive::DockerArchive;
pub use oci_layout::OciLayout;
pub use recognize::{Form, Given, recognize};
pub use section::{Section, SectionBlob};
pub use spool::SpoolDir;
pub use tar::TarSource;

/// # Behavior
/// - A source's data is not trusted: digests and sizes are checked, documents and counts bounded, links in archives and
///   layouts not followed.
/// - A source holds its files by descriptor; later changes of a path do not affect it.
#[async_trait]
pub trait Source: Send + Sync {
    /// Determines the image. Its layers are not read if their diff ids are known without; a caller opens them if it
    /// needs them, and none does if they are stored already.
    async fn image(&self) -> Result<Image, ImageError>;
}

/// Which image of a source to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub platform: Platform,
    /// Its name, `repository:tag`; not needed if there is only one.
    pub reference: Option<String>,
}

/// Layers of a config and blobs of a manifest correspond one to one.
fn paired<B: Blob + 'static>(
    diff_ids: Vec<Digest>,
    blobs: Vec<B>,
) -> Result<Vec<Layer>, ImageError> {
    if diff_ids.len() != blobs.len() {
        let reason =
            format!("it has {} layers, and its config names {}", blobs.len(), diff_ids.len());
        return Err(ImageError::Invalid { what: "the image", reason });
    }
    let layer = |(diff_id, blob)| Layer { diff_id, blob: Arc::new(blob) };
    Ok(diff_ids.into_iter().zip(blobs).map(layer).collect())
}

/// Nested indexes without a manifest.
fn too_deep() -> ImageError {
    let reason = format!("more than {IMAGE_INDEX_DEPTH_MAX} indexes lie within each other");
    ImageError::Invalid { what: "an index", reason }
}

/// Runs work on a thread that may block.
async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(ImageError::Io { what: "the image".to_owned(), source: std::io::Error::other(error) })
    })
}
