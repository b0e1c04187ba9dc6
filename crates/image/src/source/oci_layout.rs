//! An OCI layout: `index.json` names manifests, all content is in `blobs/sha256`. As a directory or a tar.

use async_trait::async_trait;

use super::place::ImageLocation;
use super::section::SectionBlob;
use super::{Source, Wanted, offload};
use crate::image::{Image, ImageConfig, ImageError};
use crate::manifest::{Document, Manifest};
use sandkeep_core::limits;

pub(super) const MARK: &str = "oci-layout";
pub(super) const INDEX: &str = "index.json";

#[derive(Clone)]
pub struct OciLayout {
    pub(super) place: ImageLocation,
    pub(super) wanted: Wanted,
}

#[async_trait]
impl Source for OciLayout {
    async fn image(&self) -> Result<Image, ImageError> {
        let layout = self.clone();
        offload(move || layout.read()).await
    }
}

impl OciLayout {
    fn read(&self) -> Result<Image, ImageError> {
        let manifest = self.manifest()?;
        let bytes = self.place.document(&manifest.config, "the config of the image")?;
        let (config, diff_ids) = ImageConfig::parse(&bytes)?;
        config.check_platform(&self.wanted.platform)?;
        let blobs = manifest.layers.iter().map(|layer| {
            let section = self.place.blob(layer)?;
            Ok(SectionBlob { section, expected: Some(layer.digest) })
        });
        let blobs = blobs.collect::<Result<Vec<_>, ImageError>>()?;
        let layers = super::paired(diff_ids, blobs)?;
        Ok(Image { id: manifest.config.digest, config, layers })
    }

    /// The manifest for the platform, through any nested indexes. Only the first one names images.
    fn manifest(&self) -> Result<Manifest, ImageError> {
        let first = self.place.open(INDEX)?;
        let mut bytes = first.bytes("an index", limits::IMAGE_MANIFEST_MAX_BYTES)?;
        let mut media_type: Option<String> = None;
        let mut reference = self.wanted.reference.as_deref();
        for _ in 0..=limits::IMAGE_INDEX_DEPTH_MAX {
            let index = match Document::parse(&bytes, media_type.as_deref())? {
                Document::Manifest(manifest) => return Ok(manifest),
                Document::Index(index) => index,
            };
            let chosen = index.select(&self.wanted.platform, reference.take())?;
            bytes = self.place.document(chosen, "a manifest")?;
            media_type = Some(chosen.media_type.clone());
        }
        Err(super::too_deep())
    }
}
