//! Layers as datasets with one snapshot, which volumes and the layers above are cloned from. Each holds the whole tree
//! up to itself and is known by its chain id. None is mounted once it is kept.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::syncfs;

use super::burial::{Kind, has_snapshots};
use super::names::{self, LAYER};
use super::{Start, Zfs, io_error, place, random};
use crate::sandbox::{SandboxId, SnapshotId};
use crate::storage::layer::{chain_key, check_count};
use crate::storage::offload::{BlockingLayers, keep};
use crate::storage::{LayerDraft, LayerId, LayerKey, StorageError, Whiteouts};

/// The topmost of some layers.
pub(super) struct Top {
    pub snapshot: String,
    pub bytes: u64,
}

impl Zfs {
    /// What to clone to stand on these layers; `None` for none.
    pub(super) fn top(&self, layers: &[LayerId]) -> Result<Option<Top>, StorageError> {
        check_count(layers)?;
        let Some(key) = chain_key(layers) else { return Ok(None) };
        match self.kept(&key) {
            Ok(top) => Ok(Some(top)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StorageError::LayerMissing { layer: self.first_missing(layers) })
            }
            Err(source) => Err(io_error(format!("open {key}"), source)),
        }
    }

    fn kept(&self, key: &LayerKey) -> io::Result<Top> {
        let snapshot = format!("{}@{LAYER}", self.names.layer(key));
        let [bytes] = self.numbers(&snapshot, ["referenced"])?;
        Ok(Top { snapshot, bytes })
    }

    /// The lowest layer of a list that is not kept above those below it.
    fn first_missing(&self, layers: &[LayerId]) -> LayerId {
        let missing = (1..=layers.len())
            .find(|count| chain_key(&layers[..*count]).is_some_and(|key| self.kept(&key).is_err()));
        layers[missing.unwrap_or(layers.len()) - 1].clone()
    }

    fn begin(
        self: &Arc<Self>,
        below: &[LayerId],
        layer: &LayerId,
        start: Start<'_>,
    ) -> Result<Option<LayerDraft>, StorageError> {
        let failed = |source| io_error(format!("draft {layer}"), source);
        let layers = [below, std::slice::from_ref(layer)].concat();
        let key = chain_key(&layers).expect("there is one layer");
        match self.kept(&key) {
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let name = format!("{}/{}", self.names.drafts(), random());
        let root = self.make(&name, place::DRAFT, start, &[]).map_err(failed)?;
        let storage = Arc::clone(self);
        let discard = move || {
            let _changing = storage.changing();
            if let Err(error) = storage.bury(&name) {
                tracing::warn!(%error, "a draft of a layer stays until the next start");
            }
        };
        Ok(Some(LayerDraft::new(root, Whiteouts::Remove, key, discard).with_ids(self.ids)))
    }

    /// The draft that is mounted there.
    fn draft_at(&self, root: &Path) -> io::Result<String> {
        let rows = self.tool.get(&self.names.drafts(), "mountpoint", super::Reach::All)?;
        let found = rows.into_iter().find(|row| Path::new(&row.value) == root);
        found.map(|row| row.name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Has `work` done with a snapshot of a volume's tree that is nobody's.
    fn with_capture<T>(
        &self,
        id: &SandboxId,
        work: impl FnOnce(&str) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let failed = |source| io_error(format!("capture {id}"), source);
        self.write_back(id).map_err(failed)?;
        let capture = format!("{}@capture-{}", self.names.tree(id), random());
        self.tool.run(&["snapshot", &capture]).map_err(failed)?;
        let done = work(&capture);
        // It stays for as long as the layer does, and is no snapshot of the volume.
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
        let start = top.as_ref().map_or(Start::Empty, |top| Start::CopyOf(&top.snapshot));
        self.begin(below, layer, start)
    }

    /// Until it is renamed it is a draft, whatever snapshots it has.
    fn publish(&self, draft: &LayerDraft) -> io::Result<()> {
        let _changing = self.changing();
        let name = self.draft_at(&draft.root)?;
        syncfs(std::fs::File::open(&draft.root)?)?;
        self.tool.run(&["snapshot", &format!("{name}@{LAYER}")])?;
        self.unmount(&name)?;
        self.tool.run(&["rename", &name, &self.names.layer(draft.key())]).map(drop)
    }

    fn layer_from(
        self: &Arc<Self>,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError> {
        let begin = |from: &str| self.begin(below, layer, Start::CopyOf(from));
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
        let layers = self.names.layers();
        let (seen, beneath) = (self.look(&layers)?, format!("{layers}/"));
        let kept = seen
            .iter()
            .filter(|it| it.kind == Kind::Dataset && has_snapshots(&seen, &it.name))
            .filter_map(|it| LayerId::from_hex(it.name.strip_prefix(&beneath)?));
        Ok(kept.map(LayerKey).collect())
    }

    /// What stands on it keeps what it needs.
    fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError> {
        let _changing = self.changing();
        let buried = self.bury(&self.names.layer(layer));
        buried.map_err(|source| io_error(format!("remove {layer}"), source))
    }
}

/// The name of a snapshot without that of its dataset.
pub(super) fn dataset_of(snapshot: &str) -> &str {
    names::split(snapshot).0
}
