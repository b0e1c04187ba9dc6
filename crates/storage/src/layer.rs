//! Layers: what volumes stand on. A layer is a difference to the layers below it, known by its diff id
//! (the digest of its uncompressed tar), and never changes once it is kept.

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

    /// The id whose digits these are.
    pub(super) fn from_hex(hex: &str) -> Option<Self> {
        format!("{}{hex}", Self::PREFIX).parse().ok()
    }
}

impl FromStr for LayerId {
    type Err = InvalidLayerId;

    fn from_str(text: &str) -> Result<Self, InvalidLayerId> {
        let hex = text.strip_prefix(Self::PREFIX).unwrap_or_default();
        let digits = hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match hex.len() == 64 && digits {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidLayerId { text: text.to_owned() }),
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

/// What a new volume starts as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Empty,
    /// All of these, the lowest first. An empty list is the same as [`Base::Empty`].
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

/// Whether a volume can stand on so many.
pub(super) fn check_count(layers: &[LayerId]) -> Result<(), StorageError> {
    let (count, max) = (layers.len(), limits::LAYERS_MAX);
    match count > max {
        true => Err(StorageError::TooManyLayers { count, max }),
        false => Ok(()),
    }
}

/// What a storage keeps a layer under: its own business, to be compared and handed back, no more.
/// [`Storage::layer_key`](super::Storage::layer_key) tells it for a list of layers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerKey(pub LayerId);

impl fmt::Display for LayerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a storage keeps a layer under that holds the whole tree up to it: the chain id of the topmost of these layers,
/// as images define it.
pub(super) fn chain_key(layers: &[LayerId]) -> Option<LayerKey> {
    let (lowest, above) = layers.split_first()?;
    let chain = above.iter().fold(lowest.clone(), |chain, layer| {
        let text = format!("{chain} {layer}");
        let hash = digest(&SHA256, text.as_bytes());
        LayerId::from_hex(&hex::encode(hash)).expect("a SHA-256 has 64 digits")
    });
    Some(LayerKey(chain))
}

/// What to do in a draft where the layer says that something below is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whiteouts {
    /// The draft holds the tree below: delete what a whiteout names.
    Remove,
    /// The draft holds nothing of it: write the marks of an overlay. A name that is gone is a
    /// character device 0/0; a directory that hides all below it has `OPAQUE` set to `y`, also
    /// the root of the draft. Other attributes that begin with `OVERLAY_ATTRIBUTES` do not belong into a layer.
    Overlay,
}

/// A layer in the making: nobody sees it before it is kept. One that is dropped is removed, in the
/// background; one that a crash left is removed when the storage is opened.
pub struct LayerDraft {
    /// The directory to apply the layer in. It has the root of the layers below, by mode and owner.
    pub root: PathBuf,
    pub whiteouts: Whiteouts,
    /// How owners are written down in it.
    pub ids: Ids,
    /// Where the layers below lie, the lowest first, as far as they can be seen, if the draft holds nothing of
    /// them. A layer may need to know what is there.
    pub lowers: Vec<PathBuf>,
    key: LayerKey,
    discard: Option<Discard>,
}

type Discard = Box<dyn FnOnce() + Send + Sync>;

impl LayerDraft {
    /// `discard` removes what there is of the draft. It may block.
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

    /// Has it kept as another layer than it was begun as: for one of which only applying it shows that it
    /// cannot be shared.
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

    /// It was kept, so nothing is left to remove.
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
        // Whoever drops it may be a task that must not block. Without a thread to be had it stays
        // until the storage is opened.
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
