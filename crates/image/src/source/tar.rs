//! A tar of a whole tree (plain, gzip or zstd) as an image with one layer.

use std::sync::Arc;

use async_trait::async_trait;

use super::Source;
use super::section::{Section, SectionBlob};
use crate::image::{Image, ImageError, Layer};
use sandkeep_tree::digest::Digest;

pub struct TarSource {
    pub(super) section: Section,
    /// Computed by reading it once.
    pub(super) diff_id: Digest,
}

#[async_trait]
impl Source for TarSource {
    async fn image(&self) -> Result<Image, ImageError> {
        let blob = SectionBlob { section: self.section.clone(), expected: None };
        Ok(Image::of_one(Layer { diff_id: self.diff_id, blob: Arc::new(blob) }))
    }
}
