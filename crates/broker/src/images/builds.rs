//! Builds: a template created step by step from a build file.
//!
//! ```text
//!  upload ─▶ Context ─▶ Recipe ─▶ per stage: base ─▶ step, step, … ─▶ record
//!                                              │
//!      key known ◀── a row of `build-steps` ───┤
//!      RUN  a temporary sandbox on the layers so far ─▶ its volume becomes a layer
//!      COPY an archive of the copied files ─▶ applied as a layer
//! ```
//!
//! A build belongs to its caller: it stops when nobody listens any more. Its completed steps are not lost, because the
//! outcome of every step is a row that the next build finds. The sandbox of a step is marked as such, so that it is
//! listed nowhere and a daemon that finds one after a crash removes it.

mod bases;
mod cache;
mod caches;
mod copying;
mod mounts;
mod network;
mod room;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::info;

use super::claim::Claim;
use super::import::Job;
use super::intent::Intent;
use super::opening;
use super::progress::{Events, Import};
use super::record::{self, Content, Record};
use super::upload::Upload;
use super::view::{TemplateView, view};
use super::{Audience, collect, owner};
use crate::error::Error;
use crate::{Broker, health};
use sandkeep_core::network::{Network, NetworkTerms};
use sandkeep_core::{ImportId, Owner, Principal, TemplateName, failpoint, limits, with_causes};
use sandkeep_image::{
    copying::{Context, CopyError},
    image::{ImageConfig, Platform},
    recipe::{Ignore, Recipe, RecipeError},
};
use sandkeep_tree::digest::Digest;

pub(super) use cache::{needed as cached_layers, needed_of as cached_layers_of};
pub(super) use caches::Holds as CacheHolds;
pub use caches::recorded as recorded_build_caches;
pub(crate) use caches::volumes as cache_volumes;
pub(crate) use mounts::StepMounts;
use room::Rooms;
use steps::{Builder, Built};

/// Default name of the build file.
const BUILD_FILE: &str = "Dockerfile";

/// A build as requested.
pub struct BuildDraft {
    pub name: TemplateName,
    pub project: Option<String>,
    pub audience: Audience,
    /// An archive with the build file and all files that it copies.
    pub context: Upload,
    /// Path of the build file in the archive, if not the default.
    pub file: Option<String>,
    /// Values of `ARG`s.
    pub arguments: BTreeMap<String, String>,
    /// The stage to build, if not the last.
    pub target: Option<String>,
    pub cache: Cache,
    /// What commands of the build may reach.
    pub network: Network,
    /// The policy of sandboxes that name none.
    pub default_network: Option<Network>,
}

/// Whether cached steps are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Cached steps are not run again.
    Used,
    PassedBy,
}

/// An admitted build.
struct Order {
    owner: Owner,
    archive: std::fs::File,
    file: Option<String>,
    arguments: BTreeMap<String, String>,
    target: Option<String>,
    cache: Cache,
    network: NetworkTerms,
    events: Events,
    /// Canceled when nobody listens any more.
    unwanted: CancellationToken,
}

impl Broker {
    /// Starts building a template, replacing one of the same name. Errors of the request itself are returned at once;
    /// all others by the build. Dropping the returned value stops the build.
    pub async fn build_template(
        &self,
        who: &Principal,
        draft: BuildDraft,
    ) -> Result<Import, Error> {
        let whose = self.whose(who, &draft.name, draft.project.as_deref(), draft.audience)?;
        let owner = owner(who, draft.project.as_deref())?;
        let network = self.network_of_build(&draft.network)?;
        self.shared.network.check_default(draft.default_network.as_ref())?;
        health::refuse_when_full(&self.shared).await?;
        let images = &self.shared.images;
        let (place, room) =
            images.place(&self.shared, &images.builds, &owner, &whose, &draft.name).await?;
        let BuildDraft { name, context, file, arguments, target, cache, default_network, .. } =
            draft;
        let (archive, space) = context.finish().await?;
        let space = Arc::new(space);
        let (import, reporter, outcome, events, unwanted) = Import::begin_build();
        let claim = Claim::of(owner.clone());
        let id = ImportId::random();
        let job = Job { id, whose, claim, name, network: default_network, reporter, room, space };
        let order =
            Order { owner, archive, file, arguments, target, cache, network, events, unwanted };
        let broker = self.clone();
        self.shared.tasks.spawn(async move {
            let result = broker.carry_out_build(&job, order).await;
            drop((job, place));
            // The receiver may be gone.
            let _ = outcome.send(result.map(Box::new));
        });
        Ok(import)
    }

    /// Stops all builds, and returns when they have ended.
    pub(crate) async fn stop_builds(&self) {
        let images = &self.shared.images;
        self.shared.detaching.cancel();
        images.builds.close().await;
    }

    /// One build per name at a time, from the intent to its removal.
    async fn carry_out_build(&self, job: &Job, order: Order) -> Result<TemplateView, Error> {
        let shared = &self.shared;
        let unwanted = order.unwanted.clone();
        let stopped = async {
            tokio::select! {
                () = unwanted.cancelled() => {}
                () = shared.detaching.cancelled() => {}
            }
        };
        tokio::pin!(stopped);
        let _alone = tokio::select! {
            alone = shared.images.names.join(record::key(&job.whose, &job.name)) => alone,
            () = &mut stopped => return Err(Error::ShuttingDown),
        };
        let intent = Intent { name: job.name.clone(), sandbox: None, node: shared.node() };
        let store = Arc::clone(shared.images.records.store());
        let begun = intent.write(&*store, &job.id).await?;
        failpoint!("build.after_intent");
        let rooms = Rooms::default();
        let built = tokio::select! {
            built = self.build(job, order, &rooms) => built,
            () = &mut stopped => Err(Error::ShuttingDown),
            () = tokio::time::sleep(limits::BUILD_MAX) => {
                Err(Error::TookTooLong { what: "the build", limit: limits::BUILD_MAX })
            }
        };
        let built = job.told(built);
        rooms.clear(self).await;
        // Must not be canceled half-way: a row that names layers has to be written while they are pinned.
        let made = match built {
            Ok((built, content)) => {
                let made = self.write_down(job, content).await;
                drop(built);
                made
            }
            Err(error) => Err(error),
        };
        self.end_build(job, &made).await;
        begun.over(&*store).await;
        Ok(view(&job.whose, made?))
    }

    async fn end_build(&self, job: &Job, made: &Result<Record, Error>) {
        failpoint!("build.after_outcome");
        if let Err(error) = made {
            info!(name = %job.name, error = with_causes(error), "a build failed");
        }
        if let Err(error) = cache::trim(&self.shared).await {
            info!(%error, "cannot forget old steps of builds; it will be tried after the next");
        }
        caches::trim_or_warn(&self.shared).await;
        // Removes layers of a failed build, or of the template that was replaced.
        collect::soon(&self.shared);
    }

    /// Runs all steps. The returned value keeps the layers until they are recorded.
    async fn build<'a>(
        &'a self,
        job: &'a Job,
        order: Order,
        rooms: &'a Rooms,
    ) -> Result<(Builder<'a>, Content), Error> {
        let Order { owner, archive, file, arguments, target, cache, network, events, .. } = order;
        let spool = opening::spool(&self.shared, &job.space).await?;
        let read = move || read(archive, file, arguments, &spool);
        let read = self.shared.tasks.spawn_blocking(read).await;
        let (file, recipe, context) = read.map_err(|_| Error::ShuttingDown)??;
        failpoint!("build.after_context");
        let wanted = recipe.target(target.as_deref()).ok_or_else(|| {
            let named = target.clone().unwrap_or_default();
            Error::BuildFileInvalid { problem: format!("{file} has no stage {named:?}") }
        })?;
        let mut builder = Builder::new(
            self,
            job,
            owner,
            rooms,
            network,
            events,
            cache,
            recipe,
            Arc::new(context),
        );
        let built = builder.all(wanted).await?;
        failpoint!("build.after_steps");
        let content = content(job, &file, built)?;
        Ok((builder, content))
    }
}

/// The content of the template's record.
fn content(job: &Job, file: &str, built: Built) -> Result<Content, Error> {
    let start = built.start_up()?;
    let mut config: ImageConfig = built.scene.config().clone();
    if config.os.is_empty() && config.architecture.is_empty() {
        let Platform { os, architecture, variant } = Platform::here();
        (config.os, config.architecture, config.variant) = (os, architecture, variant);
    }
    let layers: Vec<&str> = built.layers.iter().map(|layer| layer.id.as_str()).collect();
    let described = serde_json::to_vec(&(layers, &built.over, &config, &start))
        .expect("it holds only strings, numbers and maps of strings");
    Ok(Content {
        name: job.name.clone(),
        digest: Digest::of(&described).to_string(),
        source: format!("build {file}"),
        layers: built.layers,
        over: built.over,
        config: Some(config),
        start,
    })
}

/// Finds the build file in the upload, and reads it. Blocks.
fn read(
    archive: std::fs::File,
    file: Option<String>,
    arguments: BTreeMap<String, String>,
    spool: &sandkeep_image::source::SpoolDir,
) -> Result<(String, Recipe, Context), Error> {
    let context = Context::read(archive, spool).map_err(unusable)?;
    let file = file.unwrap_or_else(|| BUILD_FILE.to_owned());
    let text = context.text(&file, limits::RECIPE_MAX_BYTES).map_err(unusable)?;
    let text = text.ok_or_else(|| unusable(CopyError::NoBuildFile { file: file.clone() }))?;
    let wrong = |file: &str| {
        let file = file.to_owned();
        move |error: RecipeError| Error::BuildFileInvalid { problem: format!("{file}: {error}") }
    };
    let recipe = Recipe::dockerfile(&text, arguments).map_err(wrong(&file))?;
    let ignore = match context.ignore_file(&file).map_err(unusable)? {
        Some((name, text)) => Ignore::read(&text).map_err(wrong(&name))?,
        None => Ignore::default(),
    };
    Ok((file, recipe, context.without(&ignore)))
}

fn unusable(error: CopyError) -> Error {
    Error::BuildFileInvalid { problem: with_causes(&error) }
}
