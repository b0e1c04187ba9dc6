//! Steps that copy files: planned on top of the layers so far, and written as a layer if not cached.

use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::steps::{Builder, Built, failed};
use crate::error::Error;
use crate::images::layers::id_of;
use crate::images::opening;
use crate::images::record::KeptLayer;
use sandkeep_core::{ImportId, failpoint, limits};
use sandkeep_image::{
    copying::{CopyError, Files, Plan, Planner, ids_of},
    image::Layer,
    recipe::{Copied, CopiedFile, Directory, Origin, Step},
    source::{Section, SectionBlob, SpoolDir},
};
use sandkeep_storage::{LayerDraft, LayerId, StorageError, Whiteouts};
use sandkeep_tree::{
    Effort, View,
    digest::{Digest, Hasher},
    effort::CancelOnDrop,
};

/// The input of a copy step.
pub struct Copying {
    plan: Plan,
    from: Arc<dyn Files>,
    /// For the cache key.
    pub files: Vec<CopiedFile>,
    /// When a build ends, its reading thread stops.
    abandoned: Option<CancelOnDrop>,
}

impl Builder<'_> {
    /// Plans a copy on top of some layers.
    pub async fn plan_copy(
        &mut self,
        below: &[KeptLayer],
        copied: &Copied,
        step: &Step,
    ) -> Result<Copying, Error> {
        let effort = copying_effort();
        let from: Arc<dyn Files> = match &copied.from {
            Origin::Context => Arc::clone(&self.context) as _,
            Origin::Stage(index) => {
                Arc::new(self.view(&self.done[index].layers).await?.within(&effort))
            }
            Origin::Image(name) => {
                let image = self.image(name, step.line).await?;
                Arc::new(self.view(&image.layers).await?.within(&effort))
            }
        };
        let below = self.view(below).await?.within(&effort);
        let copied = copied.clone();
        let plan = move || {
            let owner = copied.owner.as_deref().map(|owner| ids_of(owner, &below)).transpose()?;
            let plan = Planner::above(&below, owner, copied.mode).copy(&copied, from.as_ref())?;
            let files = plan.files(from.as_ref())?;
            Ok(Copying { plan, from, files, abandoned: None })
        };
        self.planned(plan, effort, step).await
    }

    pub async fn plan_directory(
        &mut self,
        built: &Built,
        directory: &Directory,
        step: &Step,
    ) -> Result<Copying, Error> {
        let from = Arc::clone(&self.context) as Arc<dyn Files>;
        let effort = copying_effort();
        let below = self.view(&built.layers).await?.within(&effort);
        let directory = directory.clone();
        let plan = move || {
            let owner =
                directory.owner.as_deref().map(|owner| ids_of(owner, &below)).transpose()?;
            let plan = Planner::above(&below, owner, None).directory(&directory.path)?;
            let files = plan.files(from.as_ref())?;
            Ok(Copying { plan, from, files, abandoned: None })
        };
        self.planned(plan, effort, step).await
    }

    async fn planned(
        &self,
        plan: impl FnOnce() -> Result<Copying, CopyError> + Send + 'static,
        effort: Effort,
        step: &Step,
    ) -> Result<Copying, Error> {
        let abandoned = Some(effort.cancel_on_drop());
        let planned = self.broker.shared.tasks.spawn_blocking(plan).await;
        let planned = planned.map_err(|_| Error::ShuttingDown)?.map_err(failed(step))?;
        Ok(Copying { abandoned, ..planned })
    }

    /// Carries a plan out. A plan without files leaves the layers unchanged.
    pub async fn write(
        &mut self,
        built: &mut Built,
        copying: Copying,
        step: &Step,
    ) -> Result<(), Error> {
        if copying.plan.is_empty() {
            return Ok(());
        }
        let layer = self.archived(copying, step).await?;
        failpoint!("build.after_archive");
        let below = built.layer_ids();
        let kept = self.broker.take_layer(self.job, &below, &layer, None, &mut self.pins).await?;
        built.layers.push(kept);
        Ok(())
    }

    /// The planned files as an archive.
    pub async fn archived(&self, mut copying: Copying, step: &Step) -> Result<Layer, Error> {
        let _abandoned = copying.abandoned.take();
        let shared = &self.broker.shared;
        let spool = opening::spool(shared, &self.job.space).await?;
        let write = move || {
            let unwritten = |source| CopyError::Io { what: "what was written".to_owned(), source };
            let file = spool.file().map_err(unwritten)?;
            let left_bytes = limits::LAYER_MAX_BYTES;
            let (out, hasher) = (BufWriter::new(file), Hasher::new());
            let mut hashed = Hashed { out, hasher, left_bytes, spool: &spool };
            copying.plan.write(copying.from.as_ref(), &mut hashed)?;
            let diff_id = hashed.hasher.finish();
            let file = hashed.out.into_inner().map_err(|error| unwritten(error.into_error()))?;
            let section = Section::whole(Arc::new(file)).map_err(unwritten)?;
            Ok(Layer { diff_id, blob: Arc::new(SectionBlob { section, expected: None }) })
        };
        let written = shared.tasks.spawn_blocking(write).await;
        written.map_err(|_| Error::ShuttingDown)?.map_err(failed(step))
    }

    /// The merged tree of layers. It is read where a draft on top of them would be filled; the draft is removed with
    /// the view.
    async fn view(&self, layers: &[KeptLayer]) -> Result<View, Error> {
        let below: Vec<LayerId> = layers.iter().map(|layer| layer.id.clone()).collect();
        let nobodys = id_of(&Digest::of(ImportId::random().as_str().as_bytes()));
        let draft = self.broker.shared.storage.draft_layer(&below, &nobodys).await?;
        let draft = draft.ok_or(StorageError::LayerMissing { layer: nobodys })?;
        let open = move |_: &sandkeep_home::DataDir| view_of(draft);
        self.broker.shared.blocking(open).await
    }
}

/// Files are read once for the key, and again for the layer.
fn copying_effort() -> Effort {
    Effort::new(2 * limits::LAYER_MAX_BYTES, limits::COPY_MAX)
}

fn view_of(draft: LayerDraft) -> io::Result<View> {
    let trees = match draft.whiteouts {
        Whiteouts::Remove => vec![tree(&draft.root)?],
        // With the empty draft on top, so that the whiteouts of a single layer count as well.
        Whiteouts::Overlay => {
            let all = std::iter::once(&draft.root).chain(draft.lowers.iter().rev());
            all.map(|path| tree(path)).collect::<io::Result<_>>()?
        }
    };
    Ok(View::of_trees(trees).keeping(draft))
}

fn tree(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Computes the digest of the written data, which is bounded like every layer.
struct Hashed<'a, W> {
    out: W,
    hasher: Hasher,
    left_bytes: u64,
    spool: &'a SpoolDir,
}

impl<W: Write> Write for Hashed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.spool.reserve(bytes.len() as u64)?;
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.left_bytes = self.left_bytes.checked_sub(written as u64).ok_or_else(too_large)?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn too_large() -> io::Error {
    io::Error::other(format!("more than {} bytes are copied", limits::LAYER_MAX_BYTES))
}
