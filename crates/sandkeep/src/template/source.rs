//! Where images come from. One file per source, behind one contract.

pub mod registry;

use async_trait::async_trait;

use super::image::{Image, ImageError};

/// # Behavior
/// - Nothing that a source says is trusted: digests and sizes are checked, documents and counts bounded,
///   links in archives and layouts not followed.
/// - A source holds what it needs by descriptor; what lies at a path later does not matter to it.
#[async_trait]
pub trait Source: Send + Sync {
    /// Finds out what the image is. Its layers are not read for that where their diff ids are known
    /// without; they are opened by whoever needs them, which is nobody if they are kept already.
    async fn image(&self) -> Result<Image, ImageError>;
}
