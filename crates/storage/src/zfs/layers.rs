//! Layers as datasets with one snapshot, from which volumes and the layers above are cloned. Each contains the whole
//! tree up to itself and is identified by its chain id. The snapshot turns a draft into a layer. A stored layer is
//! never mounted.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::syncfs;

use super::command::Reach;
use super::look::{Seen, YES};
use super::names::{self, LAYER};
use super::{DEAD, DatasetOrigin, Zfs, io_error, number, place, random};
use crate::layer::{chain_key, check_count};
use crate::offload::{BlockingLayers, keep};
use crate::{LayerDraft, LayerId, LayerKey, StorageError, Whiteouts};
use sandkeep_core::{SandboxId, SnapshotId};

/// The topmost of several layers.
pub(super) struct Top {
    pub snapshot: String,
    pub bytes: u64,
}

impl Zfs {
    /// What to clone for these layers; `None` for none.
    pub(super) fn top(&self, layers: &[LayerId]) -> Result<Option<Top>, StorageError> {
        check_count(layers)?;
        let Some(key) = chain_key(layers) else { return Ok(None) };
        let mut kept = self.kept().map_err(|source| io_error(format!("open {key}"), source))?;
        let missing = || StorageError::LayerMissing { layer: first_missing(&kept, layers) };
        if kept.contains_key(&key) { Ok(kept.remove(&key)) } else { Err(missing()) }
    }

    /// All stored layers.
    fn kept(&self) -> io::Result<BTreeMap<LayerKey, Top>> {
        let asked = ["referenced", DEAD].join(",");
        let rows = self.tool.get(&self.names.layers(), &asked, Reach::All)?;
        let is_layer = |name: &str| names::split(name).1 == Some(LAYER);
        let told = rows.iter().filter(|row| row.property == DEAD && row.value != YES);
        let mut kept = BTreeMap::new();
        for row in told.filter(|row| is_layer(&row.name)) {
            if let Some(key) = self.names.layer(&row.name) {
                let bytes = number(&rows, &row.name, "referenced")?;
                kept.insert(key, Top { snapshot: row.name.clone(), bytes });
            }
        }
        Ok(kept)
    }

    fn begin(
        self: &Arc<Self>,
        below: &[LayerId],
        layer: &LayerId,
        start: DatasetOrigin<'_>,
    ) -> Result<Option<LayerDraft>, StorageError> {
        let failed = |source| io_error(format!("draft {layer}"), source);
        let layers = [below, std::slice::from_ref(layer)].concat();
        let key = chain_key(&layers).expect("there is one layer");
        if self.kept().map_err(failed)?.contains_key(&key) {
            return Ok(None);
        }
        let name = self.names.new_layer(&key, &random());
        let root = self.make(&name, place::DRAFT, start, &[]).map_err(failed)?;
        let storage = Arc::clone(self);
        let discard = move || {
            let _changing = storage.changing();
            if let Err(error) = storage.remove_dataset(&name) {
                tracing::warn!(%error, "a draft of a layer stays until the next start");
            }
        };
        Ok(Some(LayerDraft::new(root, Whiteouts::Remove, key, discard).with_ids(self.ids)))
    }

    /// The draft that is mounted there.
    fn draft_at(&self, root: &Path) -> io::Result<Seen> {
        let seen = self.look(&self.names.layers())?;
        let found = seen.into_iter().find(|it| !it.dead && it.mountpoint.as_deref() == Some(root));
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Runs `work` with a temporary snapshot of a volume's tree.
    fn with_capture<T>(
        &self,
        id: &SandboxId,
        work: impl FnOnce(&str) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let failed = |source| io_error(format!("capture {id}"), source);
        let volume = self.volume(id).map_err(self.absent(id, "open"))?;
        self.write_back(&volume).map_err(failed)?;
        let tree = &volume.tree().map_err(failed)?.name;
        let capture = format!("{tree}@{}", names::new_capture(&random()));
        self.tool.run(&["snapshot", &capture]).map_err(failed)?;
        let done = work(&capture);
        // It stays as long as the layer does, and is not a snapshot of the volume.
        self.tool.run(&["destroy", "-d", &capture]).map_err(failed)?;
        done
    }
}

impl BlockingLayers for Zfs {
    fn layer_key(layers: &[LayerId]) -> Option<LayerKey> {
        chain_key(layers)
    }

    fn draft_layer(
        self: &Arc<Self>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<Option<LayerDraft>, StorageError> {
        let _changing = self.changing();
        let top = self.top(below)?;
        let start =
            top.as_ref().map_or(DatasetOrigin::Empty, |top| DatasetOrigin::CopyOf(&top.snapshot));
        self.begin(below, layer, start)
    }

    fn publish(&self, draft: &LayerDraft) -> io::Result<()> {
        let _changing = self.changing();
        let dataset = self.draft_at(&draft.root)?;
        if self.kept()?.contains_key(draft.key()) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        syncfs(std::fs::File::open(&draft.root)?)?;
        self.tool.run(&["snapshot", &format!("{}@{LAYER}", dataset.name)])?;
        self.unmount(&dataset)
    }

    fn layer_from(
        self: &Arc<Self>,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError> {
        let begin = |from: &str| self.begin(below, layer, DatasetOrigin::CopyOf(from));
        let draft = {
            let _changing = self.changing();
            self.top(below)?;
            match snapshot {
                Some(snapshot) => begin(&self.find(id, snapshot)?.name)?,
                None => self.with_capture(id, begin)?,
            }
        };
        match draft {
            Some(draft) => keep(self.as_ref(), draft),
            None => Ok(()),
        }
    }

    fn layers(&self) -> io::Result<Vec<LayerKey>> {
        self.kept().map(|kept| kept.into_keys().collect())
    }

    /// Clones keep what they need.
    fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError> {
        let _changing = self.changing();
        let removed = self.kept().and_then(|kept| match kept.get(layer) {
            Some(top) => self.remove_dataset(names::split(&top.snapshot).0),
            None => Ok(()),
        });
        removed.map_err(|source| io_error(format!("remove {layer}"), source))
    }
}

/// The lowest layer of a list that is not stored above those below it.
fn first_missing(kept: &BTreeMap<LayerKey, Top>, layers: &[LayerId]) -> LayerId {
    let is_kept =
        |count: usize| chain_key(&layers[..count]).is_some_and(|key| kept.contains_key(&key));
    let missing = (1..=layers.len()).find(|count| !is_kept(*count));
    layers[missing.unwrap_or(layers.len()) - 1].clone()
}
