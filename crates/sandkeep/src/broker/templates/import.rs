//! An import: from a source, or a sandbox, to a record. Once it is admitted it goes on to its end, whether or
//! not anybody waits; only the end of the daemon ends it, and then nothing of it is to be seen.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::intent::Intent;
use super::opening::{self, Opened};
use super::progress::{Import, ImportStep, Reporter};
use super::record::{self, Content, KeptLayer, Record, Whose};
use super::view::TemplateView;
use super::{TemplateDraft, collect, owner};
use crate::broker::Broker;
use crate::broker::supervisor::LifecycleVerb;
use crate::error::{Error, with_causes};
use crate::failpoint;
use crate::sandbox::{ImportId, Principal, SandboxId, Scope, TemplateName};
use crate::storage::{LayerDraft, LayerId, StorageError};
use crate::store::{Key, StoreError};
use crate::template::digest::Digest;
use crate::template::image::{Image, ImageConfig, ImageError, Layer, Platform};
use crate::template::layer::{self, LayerError, Owners, Target};
use crate::template::source::Source;

/// An import that was admitted.
struct Job {
    id: ImportId,
    whose: Whose,
    name: TemplateName,
    from: From,
    reporter: Reporter,
}

/// What it is made of.
enum From {
    Source { source: Arc<dyn Source>, said: String },
    Sandbox(SandboxId),
}

impl Broker {
    /// Begins to make a template, in place of one of the same name. What is wrong with the request itself is
    /// said at once; the rest by the import.
    pub async fn import_template(
        &self,
        who: &Principal,
        draft: TemplateDraft,
    ) -> Result<Import, Error> {
        let whose = self.whose(who, &draft.name, draft.project.as_deref(), draft.shared)?;
        let from = match opening::open(&self.shared, who, draft.source).await? {
            Opened::Source { source, said } => From::Source { source, said },
            Opened::Sandbox(id) => From::Sandbox(id),
        };
        let (import, reporter, outcome) = Import::begin();
        let job = Job { id: ImportId::random(), whose, name: draft.name, from, reporter };
        let broker = self.clone();
        self.shared.tasks.spawn(async move {
            let closing = broker.shared.closing.clone();
            let result = tokio::select! {
                result = broker.carry_out(&job) => result,
                () = closing.cancelled() => Err(Error::ShuttingDown),
            };
            // Nobody may be waiting any more.
            let _ = outcome.send(result.map(Box::new));
        });
        Ok(import)
    }

    /// Whether this principal may make a template of this name.
    pub fn may_import(
        &self,
        who: &Principal,
        name: &TemplateName,
        project: Option<&str>,
        shared: bool,
    ) -> Result<(), Error> {
        self.whose(who, name, project, shared).map(|_| ())
    }

    fn whose(
        &self,
        who: &Principal,
        name: &TemplateName,
        project: Option<&str>,
        shared: bool,
    ) -> Result<Whose, Error> {
        if self.shared.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        self.shared.refuse_built_in(name.as_str())?;
        let owner = owner(who, project)?;
        match shared {
            true if who.scopes.allow(Scope::Admin) => Ok(Whose::Shared),
            true => Err(Error::TemplateShared { name: name.to_string() }),
            false => Ok(Whose::Own(owner)),
        }
    }

    /// Under its name one at a time, from the intent to the end of it.
    async fn carry_out(&self, job: &Job) -> Result<TemplateView, Error> {
        let shared = &self.shared;
        let _alone = shared.images.names.join(record::key(&job.whose, &job.name)).await;
        let sandbox = match &job.from {
            From::Source { .. } => None,
            From::Sandbox(id) => Some(id.clone()),
        };
        let intent = Intent { name: job.name.clone(), sandbox };
        let store = Arc::clone(shared.images.records.store());
        let begun = intent.write(&*store, &job.id).await?;
        failpoint!("template.after_intent");
        let made = match &job.from {
            From::Source { source, said } => self.take_over(job, source.as_ref(), said).await,
            From::Sandbox(id) => self.capture(job, id).await,
        };
        begun.over(&*store).await;
        failpoint!("template.after_outcome");
        if let Err(error) = &made {
            info!(name = %job.name, error = with_causes(error), "an import failed");
        }
        // Layers of a failed import, or of what it has replaced.
        collect::soon(shared);
        let record = made?;
        Ok(TemplateView::of(&job.whose, record))
    }

    async fn take_over(&self, job: &Job, source: &dyn Source, said: &str) -> Result<Record, Error> {
        let shared = &self.shared;
        job.reporter.step(ImportStep::Reading);
        let image = source.image().await.map_err(unusable)?;
        image.config.check_platform(&Platform::here()).map_err(unusable)?;
        failpoint!("template.after_image");
        let ids: Vec<LayerId> = image.layers.iter().map(|layer| id_of(&layer.diff_id)).collect();
        let _pin = {
            // Not while somebody removes layers: one of these may be among them.
            let _kept = shared.images.gate.read().await;
            shared.images.pins.set(ids.clone())
        };
        let mut layers: Vec<KeptLayer> = Vec::with_capacity(ids.len());
        for (place, layer) in image.layers.iter().enumerate() {
            job.reporter.layer(place + 1, ids.len());
            let bytes = self.take_layer(job, &ids[..place], layer).await?;
            layers.push(KeptLayer { id: ids[place].clone(), bytes });
        }
        let Image { id, config, .. } = image;
        let content = Content {
            name: job.name.clone(),
            digest: id.to_string(),
            source: said.to_owned(),
            layers,
            over: None,
            config: Some(config),
        };
        self.write_down(job, content).await
    }

    /// Keeps one layer; how many bytes it has.
    async fn take_layer(&self, job: &Job, below: &[LayerId], layer: &Layer) -> Result<u64, Error> {
        let (shared, id) = (&self.shared, id_of(&layer.diff_id));
        let mut upto = below.to_vec();
        upto.push(id.clone());
        let Some(kept_as) = shared.storage.layer_key(&upto) else { return Ok(0) };
        // Of those who need the same layer, the first makes it and the others find it made.
        let _alone = shared.images.layers.join(Key::new([kept_as.to_string()])).await;
        let Some(draft) = shared.storage.draft_layer(below, &id).await? else {
            return Ok(shared.images.records.bytes_of(&id).await?.unwrap_or(0));
        };
        failpoint!("template.after_draft");
        match self.fill(job, layer, &draft).await {
            Ok(bytes) => {
                failpoint!("template.after_applied");
                shared.storage.keep_layer(draft).await?;
                failpoint!("template.after_kept");
                Ok(bytes)
            }
            Err(error) => {
                shared.storage.abort_layer(draft).await?;
                Err(error)
            }
        }
    }

    async fn fill(&self, job: &Job, layer: &Layer, draft: &LayerDraft) -> Result<u64, Error> {
        let total = layer.blob.size_bytes();
        let blob = layer.blob.open(&job.reporter.bytes(ImportStep::Fetching, total)).await;
        let blob = Abandoned { blob: blob.map_err(unusable)?, by: self.shared.closing.clone() };
        let progress = job.reporter.bytes(ImportStep::Unpacking, total);
        let (root, lowers) = (draft.root.clone(), draft.lowers.clone());
        let (whiteouts, diff_id) = (draft.whiteouts, layer.diff_id);
        let apply = move || {
            let opened = open_directory(&root).and_then(|root| {
                let lowers = lowers.iter().map(|path| open_directory(path));
                Ok((root, lowers.collect::<io::Result<Vec<_>>>()?))
            });
            let (root, lowers) = opened.map_err(|source| {
                let path = root.display().to_string();
                LayerError::Write { path, source }
            })?;
            let target = Target { root: root.as_fd(), whiteouts, lowers: &lowers };
            layer::apply(blob, &diff_id, &target, &progress)
        };
        let applied = self.shared.tasks.spawn_blocking(apply).await;
        let applied = applied.map_err(|_| Error::ShuttingDown)?.map_err(inapplicable)?;
        if applied.devices_skipped > 0 {
            let devices = applied.devices_skipped;
            info!(name = %job.name, devices, "device nodes of an image were left out");
        }
        if applied.owners == Owners::Ours {
            warn!(name = %job.name, "files of an image all belong to this user: only root can give them away");
        }
        Ok(applied.bytes)
    }

    /// Makes a layer of what a sandbox has, above what it was made from.
    async fn capture(&self, job: &Job, id: &SandboxId) -> Result<Record, Error> {
        let shared = &self.shared;
        let not_found = || Error::NotFound { id: id.clone() };
        let handle = shared.supervised(id).ok_or_else(not_found)?;
        job.reporter.step(ImportStep::Capturing);
        let base = super::base(&handle.spec)?;
        let layer = id_of(&Digest::of(job.id.as_str().as_bytes()));
        let mut ids = base.layers().to_vec();
        ids.push(layer.clone());
        let _pin = {
            let _kept = shared.images.gate.read().await;
            shared.images.pins.set(ids.clone())
        };
        self.ask(&handle, LifecycleVerb::Capture(Box::new(layer.clone()))).await?;
        failpoint!("template.after_capture");
        let below = shared.images.records.of_image(&handle.spec).await?;
        let bytes = shared.storage.usage(id).await.map_or(0, |usage| usage.used_bytes);
        let mut layers = Vec::with_capacity(ids.len());
        for id in base.layers() {
            let bytes = shared.images.records.bytes_of(id).await?.unwrap_or(0);
            layers.push(KeptLayer { id: id.clone(), bytes });
        }
        layers.push(KeptLayer { id: layer, bytes });
        let pinned = handle.spec.image();
        let config = match (&below, pinned) {
            (Some(record), _) => record.config.clone(),
            (None, Some(image)) => image.defaults.as_ref().map(|defaults| ImageConfig {
                env: defaults.env.clone().into_iter().collect(),
                working_dir: Some(defaults.workdir.clone()),
                user: Some(defaults.user.clone()),
                cmd: defaults.command.clone(),
                ..ImageConfig::default()
            }),
            (None, None) => None,
        };
        let over = match pinned {
            Some(image) => image.over.clone(),
            None => Some(handle.spec.template().to_owned()),
        };
        let listed: Vec<&str> = layers.iter().map(|layer| layer.id.as_str()).collect();
        let content = Content {
            name: job.name.clone(),
            digest: Digest::of(listed.join("\n").as_bytes()).to_string(),
            source: format!("sandbox {id}"),
            layers,
            over,
            config,
        };
        self.write_down(job, content).await
    }

    async fn write_down(&self, job: &Job, content: Content) -> Result<Record, Error> {
        job.reporter.step(ImportStep::Recording);
        let record = Record::new(content, self.shared.clock.wall());
        record::check_len(&record)
            .map_err(|long| Error::SourceInvalid { problem: long.to_string() })?;
        self.shared.images.records.put(&job.whose, &record).await?;
        failpoint!("template.after_record");
        info!(name = %job.name, digest = record.digest, "a template is there");
        Ok(record)
    }
}

/// A blob that reads no more once the daemon ends.
struct Abandoned {
    blob: Box<dyn Read + Send>,
    by: CancellationToken,
}

impl Read for Abandoned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.by.is_cancelled() {
            true => Err(io::Error::other("the daemon is shutting down")),
            false => self.blob.read(buffer),
        }
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// As the storage names the layer.
fn id_of(diff_id: &Digest) -> LayerId {
    diff_id.to_string().parse().expect("a digest is written as layers are named")
}

fn unusable(error: ImageError) -> Error {
    let problem = with_causes(&error);
    match error {
        ImageError::Remote { .. } => Error::SourceUnavailable { problem },
        _ => Error::SourceInvalid { problem },
    }
}

fn inapplicable(error: LayerError) -> Error {
    match error {
        // It is this machine that cannot, not the image that is wrong.
        LayerError::Write { path, source } => Error::Storage(StorageError::Io {
            storage: "layer",
            what: format!("write {path}"),
            source,
        }),
        other => Error::SourceInvalid { problem: with_causes(&other) },
    }
}

impl record::Records {
    /// How many bytes a layer has, as whoever applied it found.
    async fn bytes_of(&self, id: &LayerId) -> Result<Option<u64>, StoreError> {
        let records = self.all().await?;
        let mut layers = records.iter().flat_map(|(_, record)| &record.layers);
        Ok(layers.find(|layer| layer.id == *id).map(|layer| layer.bytes))
    }

    /// The record that a sandbox was made from, if it is still what it was.
    async fn of_image(&self, spec: &crate::sandbox::Spec) -> Result<Option<Record>, StoreError> {
        let Some(image) = spec.image() else { return Ok(None) };
        let records = self.all().await?.into_iter().map(|(_, record)| record);
        Ok(records.into_iter().find(|record| record.digest == image.digest))
    }
}
