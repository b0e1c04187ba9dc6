//! Image documents: a manifest names a config and layers, an index names manifests for several platforms. OCI's and
//! Docker's differ only in their media types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::image::{ImageError, Platform};
use sandkeep_core::limits;
use sandkeep_tree::digest::Digest;

pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// The media types that we accept from a registry.
pub const ACCEPTED: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST];

/// The annotation with the name of an entry of an index.
const REFERENCE_NAME: &str = "org.opencontainers.image.ref.name";
/// The same as written by `docker save`: with the repository before the tag.
const FULL_NAME: &str = "io.containerd.image.name";

/// Refers to content by type, digest and size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    #[serde(rename = "size")]
    pub size_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// One image for one platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub config: Descriptor,
    /// Lowest first.
    pub layers: Vec<Descriptor>,
}

/// The same image for several platforms, or several images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    pub manifests: Vec<Descriptor>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    Manifest(Manifest),
    Index(Index),
}

/// The fields that identify a document's type if its media type does not.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    schema_version: Option<u64>,
    media_type: Option<String>,
    config: Option<serde::de::IgnoredAny>,
    manifests: Option<serde::de::IgnoredAny>,
    fs_layers: Option<serde::de::IgnoredAny>,
}

impl Document {
    /// Parses a manifest or an index. `media_type` is the declared type, if any; a document that declares another type
    /// itself is refused, because different clients would interpret it differently.
    pub fn parse(bytes: &[u8], media_type: Option<&str>) -> Result<Self, ImageError> {
        within(bytes, "a manifest", limits::IMAGE_MANIFEST_MAX_BYTES)?;
        let kind: Kind = json(bytes, "a manifest")?;
        if kind.schema_version == Some(1) || kind.fs_layers.is_some() {
            return Err(ImageError::SchemaOne);
        }
        let said = media_type.filter(|said| ACCEPTED.contains(said));
        let own = kind.media_type.as_deref();
        if let (Some(said), Some(own)) = (said, own)
            && said != own
        {
            let reason = format!("it was announced as {said} and calls itself {own}");
            return Err(ImageError::Invalid { what: "a manifest", reason });
        }
        match (said.or(own), kind.config.is_some(), kind.manifests.is_some()) {
            (_, true, true) => Err(ImageError::Invalid {
                what: "a manifest",
                reason: "it is both a manifest and an index".to_owned(),
            }),
            (Some(OCI_MANIFEST | DOCKER_MANIFEST) | None, true, false) => {
                Manifest::checked(json(bytes, "a manifest")?).map(Self::Manifest)
            }
            (Some(OCI_INDEX | DOCKER_INDEX) | None, false, true) => {
                Index::checked(json(bytes, "an index")?).map(Self::Index)
            }
            (said, _, _) => Err(ImageError::MediaType {
                media_type: said.or(media_type).unwrap_or("nothing it says").to_owned(),
            }),
        }
    }
}

impl Manifest {
    fn checked(self) -> Result<Self, ImageError> {
        let (found, max) = (self.layers.len(), limits::IMAGE_LAYERS_MAX);
        if found > max {
            let reason = format!("it has {found} layers; {max} is the most");
            return Err(ImageError::Invalid { what: "a manifest", reason });
        }
        for layer in &self.layers {
            if layer.media_type.ends_with("+encrypted") {
                return Err(ImageError::MediaType { media_type: layer.media_type.clone() });
            }
        }
        Ok(self)
    }
}

impl Index {
    fn checked(self) -> Result<Self, ImageError> {
        let (found, max) = (self.manifests.len(), limits::IMAGE_INDEX_MAX);
        if found > max {
            let reason = format!("it names {found} manifests; {max} is the most");
            Err(ImageError::Invalid { what: "an index", reason })
        } else {
            Ok(self)
        }
    }

    /// The manifest (or a nested index) for a platform. If `reference` is given, only entries with that name are
    /// considered. A single manifest without a platform is accepted: its config will tell.
    pub fn select(
        &self,
        platform: &Platform,
        reference: Option<&str>,
    ) -> Result<&Descriptor, ImageError> {
        let named: Vec<_> = match reference {
            None => self.manifests.iter().collect(),
            Some(name) => self.manifests.iter().filter(|m| m.is_called(name)).collect(),
        };
        if let (true, Some(wanted)) = (named.is_empty(), reference) {
            let there = self.manifests.iter().filter_map(Descriptor::name).map(str::to_owned);
            return Err(ImageError::NoSuchName {
                wanted: wanted.to_owned(),
                there: there.collect(),
            });
        }
        let fitting = named.iter().filter_map(|m| Some((m.platform.as_ref()?.fits(platform)?, *m)));
        if let Some((_, best)) = fitting.min_by_key(|(rank, _)| *rank) {
            return Ok(best);
        }
        let mut silent = named.iter().filter(|m| m.platform.is_none());
        match (silent.next(), silent.next()) {
            (Some(only), None) => Ok(only),
            (Some(_), Some(_)) => Err(ImageError::SeveralImages {
                there: named.iter().map(|m| m.name().unwrap_or("(no name)").to_owned()).collect(),
            }),
            (None, _) => Err(ImageError::NoPlatform {
                wanted: platform.clone(),
                there: named
                    .iter()
                    .filter_map(|m| m.platform.clone())
                    .filter(Platform::is_known)
                    .collect(),
            }),
        }
    }
}

impl Descriptor {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn name(&self) -> Option<&str> {
        self.annotation(FULL_NAME).or_else(|| self.annotation(REFERENCE_NAME))
    }

    fn is_called(&self, name: &str) -> bool {
        let names = [self.annotation(FULL_NAME), self.annotation(REFERENCE_NAME)];
        names.into_iter().flatten().any(|own| same_image(own, name))
    }
}

/// Whether two names mean the same image when Docker's defaults are filled in.
pub(super) fn same_image(one: &str, other: &str) -> bool {
    let full = |name: &str| {
        let name = ["docker.io/library/", "docker.io/"]
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix))
            .unwrap_or(name);
        if name.rsplit('/').next().is_some_and(|last| last.contains([':', '@'])) {
            name.to_owned()
        } else {
            format!("{name}:latest")
        }
    };
    one == other || full(one) == full(other)
}

pub(super) fn within(bytes: &[u8], what: &'static str, max: usize) -> Result<(), ImageError> {
    if bytes.len() > max {
        Err(ImageError::Invalid { what, reason: format!("it is larger than {max} bytes") })
    } else {
        Ok(())
    }
}

pub(super) fn json<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
    what: &'static str,
) -> Result<T, ImageError> {
    let invalid =
        |error: serde_json::Error| ImageError::Invalid { what, reason: error.to_string() };
    serde_json::from_slice(bytes).map_err(invalid)
}

#[cfg(test)]
mod tests;
