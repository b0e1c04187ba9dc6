//! Stores the layers of an image, lowest first. Missing layers are fetched, several at once, while earlier ones are
//! unpacked.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::import::{Job, unusable};
use super::pins::Pin;
use super::progress::{ImportStep, Reporter};
use super::record::KeptLayer;
use crate::Broker;
use crate::error::Error;
use sandkeep_core::{failpoint, with_causes};
use sandkeep_image::{
    image::{ImageError, Layer, Progress},
    layer::{self, Applied, LayerError, Owners, Stands, Target},
};
use sandkeep_storage::{LayerDraft, LayerId, StorageError, Whiteouts};
use sandkeep_store::Key;
use sandkeep_tree::digest::Digest;

/// Stored layers, pinned until this is dropped.
pub struct Taken {
    pub layers: Vec<KeptLayer>,
    _pins: Vec<Pin>,
}

type OpenedLayer = Result<Box<dyn Read + Send>, ImageError>;

/// Layers being fetched, each at its position.
struct Fetching(Vec<Option<AbortOnDropHandle<OpenedLayer>>>);

impl Broker {
    pub(super) async fn take_layers(&self, job: &Job, layers: &[Layer]) -> Result<Taken, Error> {
        let mut fetching = self.fetch(job, layers).await?;
        let mut taken = Taken { layers: Vec::with_capacity(layers.len()), _pins: Vec::new() };
        let mut below: Vec<LayerId> = Vec::with_capacity(layers.len());
        for (place, layer) in layers.iter().enumerate() {
            job.reporter.layer(place + 1, layers.len());
            let fetched = fetching.0[place].take();
            let kept = self.take_layer(job, &below, layer, fetched, &mut taken._pins).await?;
            below.push(kept.id.clone());
            taken.layers.push(kept);
        }
        Ok(taken)
    }

    /// Starts fetching the layers that the owner does not have.
    async fn fetch(&self, job: &Job, layers: &[Layer]) -> Result<Fetching, Error> {
        let shared = &self.shared;
        let held = job.claim.held(shared).await?;
        let mut below: Vec<LayerId> = Vec::with_capacity(layers.len());
        let mut wanted = Vec::new();
        for (place, layer) in layers.iter().enumerate() {
            let [alone, leaning] = names(&below, &layer.diff_id);
            let had = [&alone, &leaning].into_iter().find(|id| held.has(shared, &below, id));
            let had = had.cloned();
            if had.is_none() {
                wanted.push(place);
            }
            below.push(had.unwrap_or(alone));
        }
        let total: u64 = wanted.iter().filter_map(|place| layers[*place].blob.size_bytes()).sum();
        let done: Arc<[AtomicU64]> = layers.iter().map(|_| AtomicU64::new(0)).collect();
        let mut fetching = Fetching(layers.iter().map(|_| None).collect());
        for place in wanted {
            let blob = Arc::clone(&layers[place].blob);
            let progress = fetched(&job.reporter, &done, place, total);
            let task = tokio::spawn(async move { blob.open(&progress).await });
            fetching.0[place] = Some(AbortOnDropHandle::new(task));
        }
        Ok(fetching)
    }

    /// Stores one layer. Its name depends on the layers below only if its content does.
    pub(super) async fn take_layer(
        &self,
        job: &Job,
        below: &[LayerId],
        layer: &Layer,
        fetched: Option<AbortOnDropHandle<OpenedLayer>>,
        pins: &mut Vec<Pin>,
    ) -> Result<KeptLayer, Error> {
        let shared = &self.shared;
        let [alone, leaning] = names(below, &layer.diff_id);
        for id in [&alone, &leaning] {
            // Not while layers are being removed: this may be one of them.
            let _kept = shared.images.gate.read().await;
            pins.push(shared.images.pins.set([below, std::slice::from_ref(id)].concat()));
        }
        // If several imports need the same layer, the first one stores it and the others reuse it.
        let _only = shared.images.layers.join(Key::new([alone.as_str()])).await;
        if self.is_kept(below, &leaning).await? {
            return self.take_kept(job, below, leaning, layer, fetched).await;
        }
        let Some(mut draft) = shared.storage.draft_layer(below, &alone).await? else {
            return self.take_kept(job, below, alone, layer, fetched).await;
        };
        failpoint!("template.after_draft");
        let applied = match self.fill(job, layer, &draft, fetched).await {
            Ok(applied) => applied,
            Err(error) => {
                shared.storage.abort_layer(draft).await?;
                return Err(error);
            }
        };
        failpoint!("template.after_applied");
        let id = match (applied.stands, draft.whiteouts) {
            (Stands::OnWhatIsBelow, Whiteouts::Overlay) => leaning,
            // If the draft contains everything below, its name already says so.
            (Stands::Alone, _) | (Stands::OnWhatIsBelow, Whiteouts::Remove) => alone,
        };
        if let Some(key) = shared.storage.layer_key(&[below, std::slice::from_ref(&id)].concat()) {
            draft.rename(key);
        }
        shared.storage.keep_layer(draft).await?;
        failpoint!("template.after_kept");
        Ok(KeptLayer { id, bytes: applied.bytes })
    }

    async fn is_kept(&self, below: &[LayerId], id: &LayerId) -> Result<bool, Error> {
        let storage = &self.shared.storage;
        let key = storage.layer_key(&[below, std::slice::from_ref(id)].concat());
        let kept = storage.layers().await?;
        Ok(key.is_some_and(|key| kept.contains(&key)))
    }

    /// A layer that is already stored: owners that have it get it by name, all others by its bytes.
    async fn take_kept(
        &self,
        job: &Job,
        below: &[LayerId],
        id: LayerId,
        layer: &Layer,
        fetched: Option<AbortOnDropHandle<OpenedLayer>>,
    ) -> Result<KeptLayer, Error> {
        let held = job.claim.held(&self.shared).await?;
        let proven = if held.has(&self.shared, below, &id) {
            None
        } else {
            Some(self.prove(job, layer, fetched).await?)
        };
        let noted = self.shared.images.records.bytes_of(&id).await?;
        Ok(KeptLayer { id, bytes: noted.or(proven).unwrap_or(0) })
    }

    async fn prove(
        &self,
        job: &Job,
        layer: &Layer,
        fetched: Option<AbortOnDropHandle<OpenedLayer>>,
    ) -> Result<u64, Error> {
        let blob = self.opened(job, layer, fetched).await?;
        let progress = job.reporter.bytes(ImportStep::Unpacking, layer.blob.size_bytes());
        let diff_id = layer.diff_id;
        let prove = move || layer::prove(blob, &diff_id, &progress);
        let proven = self.shared.tasks.spawn_blocking(prove).await;
        proven.map_err(|_| Error::ShuttingDown)?.map_err(inapplicable)
    }

    async fn opened(
        &self,
        job: &Job,
        layer: &Layer,
        fetched: Option<AbortOnDropHandle<OpenedLayer>>,
    ) -> Result<Abandoned, Error> {
        job.reporter.step(ImportStep::Fetching);
        let blob = match fetched {
            Some(fetched) => fetched.await.map_err(|_| Error::ShuttingDown)?,
            None => layer.blob.open(&Progress::unheard()).await,
        };
        Ok(Abandoned::new(blob.map_err(unusable)?, self.shared.closing.clone()))
    }

    /// Unpacks a layer into a draft.
    pub(super) async fn fill(
        &self,
        job: &Job,
        layer: &Layer,
        draft: &LayerDraft,
        fetched: Option<AbortOnDropHandle<OpenedLayer>>,
    ) -> Result<Applied, Error> {
        let blob = self.opened(job, layer, fetched).await?;
        let progress = job.reporter.bytes(ImportStep::Unpacking, layer.blob.size_bytes());
        let (root, lowers) = (draft.root.clone(), draft.lowers.clone());
        let (whiteouts, ids, diff_id) = (draft.whiteouts, draft.ids, layer.diff_id);
        let room = job.room.as_room();
        let apply = move || {
            let unopened = |path: &Path| {
                let path = path.to_owned();
                move |source| LayerError::Write { path: path.display().to_string(), source }
            };
            let root = open_directory(&root).map_err(unopened(&root))?;
            let lowers = lowers.iter().map(|path| open_directory(path).map_err(unopened(path)));
            let lowers = lowers.collect::<Result<Vec<_>, _>>()?;
            let target = Target { root: root.as_fd(), whiteouts, ids, lowers: &lowers };
            layer::apply(blob, &diff_id, &target, &room, &progress)
        };
        let applied = self.shared.tasks.spawn_blocking(apply).await;
        let applied = applied.map_err(|_| Error::ShuttingDown)?.map_err(inapplicable)?;
        say_what_is_not_kept(job, &applied);
        Ok(applied)
    }
}

fn say_what_is_not_kept(job: &Job, applied: &Applied) {
    let name = &job.name;
    if applied.devices_skipped > 0 {
        let devices = applied.devices_skipped;
        info!(%name, devices, "device nodes of an image were left out");
    }
    match applied.owners {
        Owners::Kept(_) => {}
        Owners::Ours => {
            warn!(%name, "all files of an image belong to the daemon's user, which is not root")
        }
    }
}

/// Reports how much of all layers is here.
fn fetched(
    reporter: &Reporter,
    done: &Arc<[AtomicU64]>,
    place: usize,
    total_bytes: u64,
) -> Progress {
    let (reporter, done) = (reporter.clone(), Arc::clone(done));
    Progress::to(move |bytes| {
        done[place].store(bytes, Ordering::Relaxed);
        let sum = done.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum();
        reporter.fetched(sum, total_bytes);
    })
}

/// A blob reader that stops when the daemon shuts down.
pub struct Abandoned {
    blob: Box<dyn Read + Send>,
    by: CancellationToken,
}

impl Abandoned {
    pub fn new(blob: Box<dyn Read + Send>, by: CancellationToken) -> Self {
        Self { blob, by }
    }
}

impl Read for Abandoned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.by.is_cancelled() {
            Err(io::Error::other("the daemon is shutting down"))
        } else {
            self.blob.read(buffer)
        }
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// The storage's id of a layer.
pub fn id_of(diff_id: &Digest) -> LayerId {
    diff_id.to_string().parse().expect("a digest is written as layers are named")
}

/// The two names of a layer: one if it is independent of the layers below, one if it is not.
fn names(below: &[LayerId], diff_id: &Digest) -> [LayerId; 2] {
    [id_of(diff_id), id_of(&layer::id_above(&digests_of(below), diff_id))]
}

fn digests_of(layers: &[LayerId]) -> Vec<Digest> {
    let digest = |layer: &LayerId| layer.as_str().parse();
    layers.iter().map(|layer| digest(layer).expect("a layer is named as digests are")).collect()
}

fn inapplicable(error: LayerError) -> Error {
    match error {
        // The failure is on this machine; the image is fine.
        LayerError::Write { path, source } => Error::Storage(StorageError::Io {
            storage: "layer",
            what: format!("write {path}"),
            source,
        }),
        other => Error::SourceInvalid { problem: with_causes(&other) },
    }
}
