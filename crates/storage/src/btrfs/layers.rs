//! Layers as read-only subvolumes. Each contains the whole tree up to itself and is identified by its chain id, which
//! includes everything below: the same difference above another base is another tree.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, RenameFlags, chmodat, renameat_with, statat, syncfs};
use rustix::io::Errno;

use super::{Btrfs, delete, io_error, is_subvolume, unused_draft};
use crate::layer::{chain_key, check_count};
use crate::offload::{BlockingLayers, keep};
use crate::{LayerDraft, LayerId, LayerKey, StorageError, Whiteouts};
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_sys::btrfs::{self, Access, quota::Charged};
use sandkeep_tree::untrusted;

/// The initial content of a draft.
enum DraftOrigin<'a> {
    Empty,
    CopyOf(&'a OwnedFd),
}

impl Btrfs {
    /// The subvolume of the topmost layer; `None` for no layers.
    pub(super) fn open_top(&self, layers: &[LayerId]) -> Result<Option<OwnedFd>, StorageError> {
        check_count(layers)?;
        let Some(key) = chain_key(layers) else { return Ok(None) };
        match self.open_layer(&key) {
            Ok(top) => Ok(Some(top)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StorageError::LayerMissing { layer: self.first_missing(layers) })
            }
            Err(source) => Err(io_error(format!("open {key}"), source)),
        }
    }

    fn open_layer(&self, key: &LayerKey) -> io::Result<OwnedFd> {
        Ok(untrusted::open_dir(self.pool.layers()?, &file_name(key))?)
    }

    /// The lowest layer of a list that is not stored above those below it.
    fn first_missing(&self, layers: &[LayerId]) -> LayerId {
        let missing = (1..=layers.len()).find(|count| {
            chain_key(&layers[..*count]).is_some_and(|key| self.open_layer(&key).is_err())
        });
        layers[missing.unwrap_or(layers.len()) - 1].clone()
    }

    fn begin(
        self: &Arc<Self>,
        below: &[LayerId],
        layer: &LayerId,
        start: &DraftOrigin<'_>,
    ) -> Result<Option<LayerDraft>, StorageError> {
        let failed = |source| io_error(format!("draft {layer}"), source);
        let key =
            chain_key(&[below, std::slice::from_ref(layer)].concat()).expect("there is one layer");
        match self.open_layer(&key) {
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let file = unused_draft();
        let layers = self.pool.layers().map_err(failed)?;
        let made = self.creating(|| match start {
            DraftOrigin::Empty => btrfs::create_subvolume(&layers, &file, Charged::TO_ITSELF),
            DraftOrigin::CopyOf(tree) => {
                let charged = Charged::TO_ITSELF;
                btrfs::snapshot_subvolume(&layers, &file, tree, Access::Write, charged)
            }
        });
        made.map_err(failed)?;
        if matches!(start, DraftOrigin::Empty) {
            chmodat(&layers, &file, Mode::from_raw_mode(0o755), AtFlags::empty())
                .map_err(|error| failed(error.into()))?;
        }
        let root = self.pool.layer_path(&file);
        let storage = Arc::clone(self);
        let discard = move || {
            let deleted = storage.pool.layers().and_then(|layers| delete(&layers, &file));
            if let Err(error) = deleted {
                tracing::warn!(%error, "a draft of a layer stays until the next start");
            }
        };
        Ok(Some(LayerDraft::new(root, Whiteouts::Remove, key, discard)))
    }
}

impl BlockingLayers for Btrfs {
    fn layer_key(layers: &[LayerId]) -> Option<LayerKey> {
        chain_key(layers)
    }

    fn draft_layer(
        self: &Arc<Self>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<Option<LayerDraft>, StorageError> {
        let top = self.open_top(below)?;
        let start = top.as_ref().map_or(DraftOrigin::Empty, DraftOrigin::CopyOf);
        self.begin(below, layer, &start)
    }

    /// Its content is on disk before its name, and both before this returns.
    fn publish(&self, draft: &LayerDraft) -> io::Result<()> {
        let name = draft.root.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let (name, layers) = (CString::new(name.as_bytes())?, self.pool.layers()?);
        let subvolume = untrusted::open_dir(&layers, &name)?;
        syncfs(&subvolume)?;
        btrfs::make_read_only(&subvolume)?;
        let to = file_name(draft.key());
        renameat_with(&layers, &name, &layers, to, RenameFlags::NOREPLACE)?;
        Ok(syncfs(&layers)?)
    }

    fn layer_from(
        self: &Arc<Self>,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError> {
        self.open_top(below)?;
        let tree = self.open_tree(id, snapshot)?;
        match self.begin(below, layer, &DraftOrigin::CopyOf(&tree))? {
            Some(draft) => keep(self.as_ref(), draft),
            None => Ok(()),
        }
    }

    fn layers(&self) -> io::Result<Vec<LayerKey>> {
        let layers = self.pool.layers()?;
        let mut keys = Vec::new();
        for (name, _) in untrusted::entries(&layers)? {
            let Some(id) = name.to_str().ok().and_then(LayerId::from_hex) else { continue };
            match statat(&layers, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if is_subvolume(&stat) => keys.push(LayerKey(id)),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(keys)
    }

    fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError> {
        let deleted = self.pool.layers().and_then(|layers| delete(&layers, &file_name(layer)));
        deleted.map_err(|source| io_error(format!("remove {layer}"), source))?;
        self.quotas.volume_destroyed(&self.pool);
        Ok(())
    }
}

fn file_name(key: &LayerKey) -> CString {
    CString::new(key.0.hex()).expect("hexadecimal digits hold no NUL")
}
