//! The format of `docker save`: for each image, `manifest.json` names its config and the archives of its layers. Newer
//! archives are OCI layouts as well, whose `manifest.json` names files of the layout.

use async_trait::async_trait;
use serde::Deserialize;

use super::place::{ImageLocation, checked};
use super::section::SectionBlob;
use super::{Source, Wanted, offload};
use crate::image::{Image, ImageConfig, ImageError};
use crate::manifest::{json, same_image};
use sandkeep_core::limits;
use sandkeep_tree::digest::Digest;

pub(super) const MANIFEST: &str = "manifest.json";
const WHAT: &str = "manifest.json of the archive";

#[derive(Clone)]
pub struct DockerArchive {
    pub(super) place: ImageLocation,
    pub(super) wanted: Wanted,
}

/// The entry of one image in `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[async_trait]
impl Source for DockerArchive {
    async fn image(&self) -> Result<Image, ImageError> {
        let archive = self.clone();
        offload(move || archive.read()).await
    }
}

impl DockerArchive {
    /// Whether there is a `manifest.json` of the right format: other archives have files of that name, too.
    pub(super) fn is_one(place: &ImageLocation) -> bool {
        place.open(MANIFEST).is_ok_and(|section| {
            section
                .bytes(WHAT, limits::IMAGE_MANIFEST_MAX_BYTES)
                .is_ok_and(|bytes| json::<Vec<Saved>>(&bytes, WHAT).is_ok())
        })
    }

    fn read(&self) -> Result<Image, ImageError> {
        let bytes = self.place.open(MANIFEST)?.bytes(WHAT, limits::IMAGE_MANIFEST_MAX_BYTES)?;
        let saved = self.choose(json(&bytes, WHAT)?)?;
        if saved.layers.len() > limits::IMAGE_LAYERS_MAX {
            let reason = format!("it names {} layers", saved.layers.len());
            return Err(ImageError::Invalid { what: WHAT, reason });
        }
        let config = self.place.open(&saved.config)?;
        let bytes = config.bytes("the config of the image", limits::IMAGE_CONFIG_MAX_BYTES)?;
        let id = Digest::of(&bytes);
        if let Some(named) = named(saved.config.strip_suffix(".json").unwrap_or(&saved.config)) {
            checked(&bytes, named)?;
        }
        let (config, diff_ids) = ImageConfig::parse(&bytes)?;
        config.check_platform(&self.wanted.platform)?;
        let blobs = saved.layers.iter().map(|path| {
            let section = self.place.open(path)?;
            // `<hex>/layer.tar` is named after something else, and so are old files of `<hex>.tar`.
            let expected = path.strip_prefix("blobs/sha256/").and_then(named);
            Ok(SectionBlob { section, expected })
        });
        let blobs = blobs.collect::<Result<Vec<_>, ImageError>>()?;
        Ok(Image { id, config, layers: super::paired(diff_ids, blobs)? })
    }

    fn choose(&self, mut saved: Vec<Saved>) -> Result<Saved, ImageError> {
        let tags = |saved: &Saved| saved.repo_tags.clone().unwrap_or_default();
        let there: Vec<String> = saved.iter().flat_map(tags).collect();
        if let Some(wanted) = &self.wanted.reference {
            let fits = |image: &Saved| tags(image).iter().any(|tag| same_image(tag, wanted));
            let position = saved.iter().position(fits);
            let missing = || ImageError::NoSuchName { wanted: wanted.clone(), there };
            return position.map(|at| saved.swap_remove(at)).ok_or_else(missing);
        }
        match (saved.pop(), saved.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(_), false) => Err(ImageError::SeveralImages { there }),
            (None, _) => Err(ImageError::Missing { what: "an image in the archive".to_owned() }),
        }
    }
}

/// The digest in a file's name, if any.
fn named(path: &str) -> Option<Digest> {
    let name = path.rsplit('/').next()?;
    format!("sha256:{name}").parse().ok()
}
