//! Layers for tests, as an image would write them into a draft.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};

use crate::{LayerDraft, LayerId, Storage, StorageError, Whiteouts};
use sandkeep_tree::OPAQUE;

/// A random id that is no layer's digest.
pub(crate) fn random_layer() -> LayerId {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).expect("random bytes");
    LayerId::from_hex(&hex::encode(bytes)).expect("64 digits")
}

/// Writes a file, and its parent directories.
pub fn write(root: &Path, path: &str, text: &str) -> io::Result<()> {
    let path = root.join(path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text)
}

/// Hides the lower entry of this name.
pub fn hide(draft: &LayerDraft, path: &str) -> io::Result<()> {
    let path = draft.root.join(path);
    match draft.whiteouts {
        Whiteouts::Remove if path.is_dir() => fs::remove_dir_all(path),
        Whiteouts::Remove => fs::remove_file(path),
        Whiteouts::Overlay => {
            let (kind, mode) = (FileType::CharacterDevice, Mode::empty());
            Ok(mknodat(CWD, path, kind, mode, makedev(0, 0))?)
        }
    }
}

/// A directory that hides everything below it.
pub fn hide_below(draft: &LayerDraft, path: &str) -> io::Result<()> {
    let path = draft.root.join(path);
    match draft.whiteouts {
        Whiteouts::Remove => {
            for entry in fs::read_dir(&path)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    fs::remove_dir_all(entry.path())?
                } else {
                    fs::remove_file(entry.path())?
                }
            }
            Ok(())
        }
        Whiteouts::Overlay => {
            fs::create_dir_all(&path)?;
            Ok(setxattr(path, OPAQUE, b"y", XattrFlags::empty())?)
        }
    }
}

/// Makes a layer of what `fill` writes into a draft.
pub async fn layer(
    storage: &dyn Storage,
    below: &[LayerId],
    fill: impl FnOnce(&LayerDraft) -> io::Result<()>,
) -> Result<LayerId, StorageError> {
    let layer = random_layer();
    let draft = storage.draft_layer(below, &layer).await?.expect("nobody has made it");
    fill(&draft).map_err(|source| StorageError::Io {
        storage: "test",
        what: "fill a layer".to_owned(),
        source,
    })?;
    storage.keep_layer(draft).await?;
    Ok(layer)
}
