//! Layers: the bases of volumes. A layer is a difference to the layers below it, identified by its diff id (the digest
//! of its uncompressed tar), and never changes once stored.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::StorageError;
use sandkeep_core::limits;
use sandkeep_tree::Ids;

/// A text that is not the digest of a layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a layer's id: expected \"sha256:\" and 64 characters of 0-9 and a-f")]
pub struct InvalidLayerId {
    text: String,
}

/// The diff id of a layer, `sha256:<64 hexadecimal digits>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerId(String);

impl LayerId {
    const PREFIX: &'static str = "sha256:";

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The digits alone, which are safe as a file name.
    pub fn hex(&self) -> &str {
        &self.0[Self::PREFIX.len()..]
    }

    /// The id with these digits.
    pub(super) fn from_hex(hex: &str) -> Option<Self> {
        format!("{}{hex}", Self::PREFIX).parse().ok()
    }
}

impl FromStr for LayerId {
    type Err = InvalidLayerId;

    fn from_str(text: &str) -> Result<Self, InvalidLayerId> {
        let hex = text.strip_prefix(Self::PREFIX).unwrap_or_default();
        let digits = hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if hex.len() == 64 && digits {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidLayerId { text: text.to_owned() })
        }
    }
}

impl TryFrom<String> for LayerId {
    type Error = InvalidLayerId;

    fn try_from(text: String) -> Result<Self, InvalidLayerId> {
        text.parse()
    }
}

impl From<LayerId> for String {
    fn from(id: LayerId) -> String {
        id.0
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The base of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Empty,
    /// These layers, lowest first. An empty list is the same as [`Base::Empty`].
    Layers(Vec<LayerId>),
}

impl Base {
    pub fn layers(&self) -> &[LayerId] {
        match self {
            Self::Empty => &[],
            Self::Layers(layers) => layers,
        }
    }
}

/// Whether a volume may have this many layers.
pub(super) fn check_count(layers: &[LayerId]) -> Result<(), StorageError> {
    let (count, max) = (layers.len(), limits::LAYERS_MAX);
    if count > max { Err(StorageError::TooManyLayers { count, max }) } else { Ok(()) }
}

/// The storage's own key of a layer: opaque to callers, who only compare it and pass it back.
/// [`Storage::layer_key`](super::Storage::layer_key) computes it for a list of layers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerKey(pub LayerId);

impl fmt::Display for LayerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The key of a layer in storages whose layers contain the whole tree: the chain id of the topmost of these layers, as
/// defined for images.
pub(super) fn chain_key(layers: &[LayerId]) -> Option<LayerKey> {
    let (lowest, above) = layers.split_first()?;
    let chain = above.iter().fold(lowest.clone(), |chain, layer| {
        let text = format!("{chain} {layer}");
        let hash = digest(&SHA256, text.as_bytes());
        LayerId::from_hex(&hex::encode(hash)).expect("a SHA-256 has 64 digits")
    });
    Some(LayerKey(chain))
}

/// What to do in a draft when the layer says that a lower entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whiteouts {
    /// The draft contains the tree below: delete what a whiteout names.
    Remove,
    /// The draft contains nothing of it: write overlay marks. A removed name is a character device 0/0; a directory
    /// that hides everything below it has `OPAQUE` set to `y`, including the root of the draft. Other attributes with
    /// the prefix `OVERLAY_ATTRIBUTES` do not belong in a layer.
    Overlay,
}

/// An unfinished layer, invisible until it is kept. A dropped draft is removed in the background; one that a crash left
/// is removed when the storage is opened.
pub struct LayerDraft {
    /// The directory to apply the layer in. Its root has mode and owner of the layers below.
    pub root: PathBuf,
    pub whiteouts: Whiteouts,
    /// How owners are stored in it.
    pub ids: Ids,
    /// The visible layers below, lowest first, if the draft contains nothing of them. Applying a layer may require
    /// reading them.
    pub lowers: Vec<PathBuf>,
    key: LayerKey,
    discard: Option<Discard>,
}

type Discard = Box<dyn FnOnce() + Send + Sync>;

impl LayerDraft {
    /// `discard` removes the draft. It may block.
    pub(crate) fn new(
        root: PathBuf,
        whiteouts: Whiteouts,
        key: LayerKey,
        discard: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        Self {
            root,
            whiteouts,
            ids: Ids::Plain,
            lowers: Vec::new(),
            key,
            discard: Some(Box::new(discard)),
        }
    }

    pub(crate) fn above(mut self, lowers: Vec<PathBuf>) -> Self {
        self.lowers = lowers;
        self
    }

    pub(crate) fn with_ids(mut self, ids: Ids) -> Self {
        self.ids = ids;
        self
    }

    /// Stores it under another key than it was started with: for a layer that turns out not to be shareable while it is
    /// applied.
    pub fn rename(&mut self, key: LayerKey) {
        self.key = key;
    }

    pub(crate) fn key(&self) -> &LayerKey {
        &self.key
    }

    /// Removes it now. Blocks.
    pub(crate) fn discard(mut self) {
        if let Some(discard) = self.discard.take() {
            discard();
        }
    }

    /// It was stored, so nothing is left to remove.
    pub(crate) fn done(mut self) {
        self.discard = None;
    }
}

impl fmt::Debug for LayerDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerDraft").field("root", &self.root).field("key", &self.key).finish()
    }
}

impl Drop for LayerDraft {
    fn drop(&mut self) {
        let Some(discard) = self.discard.take() else { return };
        // It may be dropped by a task that must not block. If no thread can be started, it stays until the storage is
        // opened.
        let _ = std::thread::Builder::new().name("discard-draft".to_owned()).spawn(discard);
    }
}

#[cfg(test)]
mod tests {
    use super::LayerId;

    #[test]
    fn only_a_digest_is_a_layers_id() {
        let hex = "0123456789abcdef".repeat(4);
        let id: LayerId = format!("sha256:{hex}").parse().expect("a digest");
        assert_eq!((id.hex(), id.to_string()), (hex.as_str(), format!("sha256:{hex}")));
        assert_eq!(LayerId::from_hex(&hex), Some(id));
        let short = &hex[1..];
        for text in [
            hex.as_str(),
            "",
            "sha256:",
            &format!("sha256:{short}"),
            &format!("sha256:0{hex}"),
            &format!("sha256:{}", hex.to_uppercase()),
            &format!("sha256:/{short}"),
            &format!("sha512:{hex}"),
        ] {
            text.parse::<LayerId>().expect_err(text);
        }
    }
}
