//! An image: layers, lowest first, and a config that says how its programs should be run. The same for every source.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::source::registry::RegistryError;
use sandkeep_tree::digest::Digest;

mod config;

pub use config::{ExposedPort, ImageConfig, Protocol};

/// An image that can be imported: its metadata is known, and its layers can be opened.
#[derive(Clone, Debug)]
pub struct Image {
    /// The digest of its config, which Docker also uses as image id.
    pub id: Digest,
    pub config: ImageConfig,
    /// Lowest first.
    pub layers: Vec<Layer>,
}

impl Image {
    /// An image with one layer and an empty config.
    pub fn of_one(layer: Layer) -> Self {
        let id = Digest::of(format!("an image of {}\n", layer.diff_id).as_bytes());
        Self { id, config: ImageConfig::default(), layers: vec![layer] }
    }
}

/// One layer of an image.
#[derive(Clone)]
pub struct Layer {
    /// The digest of its uncompressed archive, verified when the layer is applied.
    pub diff_id: Digest,
    pub blob: Arc<dyn Blob>,
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("diff_id", &self.diff_id).finish_non_exhaustive()
    }
}

/// The bytes of a layer, compressed or not, local or remote.
///
/// # Behavior
/// - May be opened more than once, and concurrently with others of the image.
/// - The content is checked against the blob's own digest and size, if it has them, when it is read to its end. Whether
///   it is the right layer is only known from its diff id.
#[async_trait]
pub trait Blob: Send + Sync {
    /// The number of bytes, if known in advance.
    fn size_bytes(&self) -> Option<u64>;

    /// Fetches the bytes if they are remote, and opens them. `progress` receives the number of fetched bytes. The
    /// reader blocks: use it where that is allowed.
    async fn open(&self, progress: &Progress) -> Result<Box<dyn Read + Send>, ImageError>;
}

/// Receives the number of processed bytes now and then.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(u64) + Send + Sync>);

impl Progress {
    pub fn to(listener: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    /// Discards everything.
    pub fn unheard() -> Self {
        Self::to(|_| {})
    }

    pub fn tell(&self, done_bytes: u64) {
        (self.0)(done_bytes);
    }
}

/// The platform of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// This machine's, with the names used in images.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            same => same,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// How well an image for this platform suits a machine, lower is better; `None` if it does not. A variant needs
    /// more than every machine of its architecture has, unless it is the lowest.
    pub fn fits(&self, machine: &Self) -> Option<u8> {
        if self.os != machine.os || self.architecture != machine.architecture {
            return None;
        }
        match (self.architecture.as_str(), self.variant.as_deref()) {
            (_, variant) if variant == machine.variant.as_deref() => Some(0),
            (_, None | Some("")) => Some(1),
            ("amd64", Some("v1")) | ("arm64", Some("v8")) => Some(1),
            ("arm", Some("v7")) => Some(1),
            ("arm", Some("v6")) => Some(2),
            ("arm", Some("v5")) => Some(3),
            (_, Some(_)) => None,
        }
    }

    /// Builders list entries that are not images (signatures, attestations) as `unknown/unknown`.
    pub(super) fn is_known(&self) -> bool {
        self.os != "unknown" && self.architecture != "unknown"
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) if !variant.is_empty() => write!(f, "/{variant}"),
            Some(_) | None => Ok(()),
        }
    }
}

/// Why something is not a usable image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("{what} is not valid: {reason}")]
    Invalid { what: &'static str, reason: String },
    #[error(
        "the image has a manifest of Docker's schema 1, which is not read; push it again with a current client"
    )]
    SchemaOne,
    #[error("{media_type} is not a kind of manifest or layer that can be used")]
    MediaType { media_type: String },
    #[error("there is no image for {wanted}; there is {}", listed(there))]
    NoPlatform { wanted: Platform, there: Vec<Platform> },
    #[error("there is no image called {wanted:?}; there is {}", listed(there))]
    NoSuchName { wanted: String, there: Vec<String> },
    #[error("there are several images, say which: {}", listed(there))]
    SeveralImages { there: Vec<String> },
    #[error("{what} is missing")]
    Missing { what: String },
    /// It is readable, but not in a known image format.
    #[error("{what} is nothing that can be imported: {reason}")]
    Unknown { what: String, reason: String },
    #[error("cannot read {what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

fn listed<T: fmt::Display>(there: &[T]) -> String {
    match there {
        [] => "none at all".to_owned(),
        some => some.iter().map(T::to_string).collect::<Vec<_>>().join(", "),
    }
}
