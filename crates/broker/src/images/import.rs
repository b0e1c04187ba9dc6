//! An import: from a source, or a sandbox, to a record. Once it is admitted it continues to its end, whether or not
//! anybody waits. Only the daemon's shutdown stops it, and then it leaves nothing behind.

use std::sync::Arc;

use tracing::info;

use super::claim::Claim;
use super::datasets;
use super::draft::{self, DraftRoom};
use super::intent::Intent;
use super::opening::{self, Opened, PathKind};
use super::progress::{Import, ImportStep, Reporter};
use super::record::{self, Content, Record, Whose};
use super::view::{TemplateView, view};
use super::{Audience, TemplateDraft, collect, owner};
use crate::error::Error;
use crate::{Broker, health};
use sandkeep_core::event::{EventKind, Subject};
use sandkeep_core::ledger::Reservation;
use sandkeep_core::network::Network;
use sandkeep_core::{ImportId, Principal, Scope, TemplateName, failpoint, limits, with_causes};
use sandkeep_image::{
    image::{Image, ImageError, Platform},
    source::{Given, Source},
};

/// An admitted import.
pub struct Job {
    pub id: ImportId,
    pub whose: Whose,
    pub claim: Claim,
    pub name: TemplateName,
    /// The policy of sandboxes that name none.
    pub network: Option<Network>,
    pub reporter: Reporter,
    /// The space that it may use in the pool.
    pub room: Arc<DraftRoom>,
    /// The space reserved for it on the host's disk from the owner's quota.
    pub space: Arc<Reservation>,
}

impl Job {
    /// Replaces an error with the limit that caused it, if one did.
    pub fn told<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        let refused = self.room.refused().or_else(|| self.space.refused());
        draft::told(result, refused)
    }
}

impl Broker {
    /// Starts creating a template, replacing one of the same name. Errors of the request itself are returned at once;
    /// all others by the import.
    pub async fn import_template(
        &self,
        who: &Principal,
        draft: TemplateDraft,
    ) -> Result<Import, Error> {
        let whose = self.whose(who, &draft.name, draft.project.as_deref(), draft.audience)?;
        self.shared.network.check_default(draft.network.as_ref())?;
        health::refuse_when_full(&self.shared).await?;
        let (images, owner) = (&self.shared.images, owner(who, draft.project.as_deref())?);
        let (place, room) =
            images.place(&self.shared, &images.imports, &owner, &whose, &draft.name).await?;
        let claim = Claim::of(owner);
        let (opened, space) = opening::open(&self.shared, who, &claim, draft.source).await?;
        let (import, reporter, outcome) = Import::begin();
        let (id, name, network) = (ImportId::random(), draft.name, draft.network);
        let job = Job { id, whose, claim, name, network, reporter, room, space };
        let broker = self.clone();
        self.shared.tasks.spawn(async move {
            let closing = broker.shared.closing.clone();
            let result = tokio::select! {
                result = broker.carry_out(&job, opened) => result,
                () = closing.cancelled() => Err(Error::ShuttingDown),
                () = tokio::time::sleep(limits::IMPORT_MAX) => Err(Error::TookTooLong {
                    what: "the import", limit: limits::IMPORT_MAX,
                }),
            };
            drop((job, place));
            // The receiver may be gone.
            let _ = outcome.send(result.map(Box::new));
        });
        Ok(import)
    }

    /// Whether this principal may create a template with this name.
    pub fn may_import(
        &self,
        who: &Principal,
        name: &TemplateName,
        project: Option<&str>,
        audience: Audience,
    ) -> Result<(), Error> {
        self.whose(who, name, project, audience).map(|_| ())
    }

    pub(super) fn whose(
        &self,
        who: &Principal,
        name: &TemplateName,
        project: Option<&str>,
        audience: Audience,
    ) -> Result<Whose, Error> {
        if self.shared.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        self.shared.refuse_built_in(name.as_str())?;
        let owner = owner(who, project)?;
        match audience {
            Audience::Owner => Ok(Whose::Own(owner)),
            Audience::Everybody if who.scopes.allow(Scope::Admin) => Ok(Whose::Shared),
            Audience::Everybody => Err(Error::TemplateShared { name: name.to_string() }),
        }
    }

    /// One import per name at a time, from the intent to its removal.
    async fn carry_out(&self, job: &Job, opened: Opened) -> Result<TemplateView, Error> {
        let shared = &self.shared;
        let _alone = shared.images.names.join(record::key(&job.whose, &job.name)).await;
        let sandbox = match &opened {
            Opened::Given { .. }
            | Opened::Dataset { .. }
            | Opened::Registry { .. }
            | Opened::Snapshot { .. } => None,
            Opened::Sandbox(id) => Some(id.clone()),
        };
        let intent = Intent { name: job.name.clone(), sandbox, node: shared.node() };
        let store = Arc::clone(shared.images.records.store());
        let begun = intent.write(&*store, &job.id).await?;
        failpoint!("template.after_intent");
        let made = match opened {
            Opened::Given { given, kind, said } => self.take_given(job, given, kind, &said).await,
            Opened::Dataset { tree, said } => {
                let made = match datasets::given(&tree) {
                    Ok(given) => self.take_given(job, given, PathKind::Dir, &said).await,
                    Err(error) => Err(error),
                };
                datasets::release(shared, tree).await;
                made
            }
            Opened::Registry { image, said } => {
                let made = self.take_over(job, image.as_ref(), &said).await;
                if made.is_ok() {
                    image.taken_over();
                }
                made
            }
            Opened::Sandbox(id) => self.capture_sandbox(job, &id).await,
            Opened::Snapshot { sandbox, snapshot, said } => {
                self.capture_snapshot(job, &sandbox, &snapshot, said).await
            }
        };
        let made = job.told(made);
        begun.over(&*store).await;
        failpoint!("template.after_outcome");
        if let Err(error) = &made {
            info!(name = %job.name, error = with_causes(error), "an import failed");
        }
        // Removes layers of a failed import, or of the template that was replaced.
        collect::soon(shared);
        Ok(view(&job.whose, made?))
    }

    async fn take_given(
        &self,
        job: &Job,
        given: Given,
        kind: PathKind,
        said: &str,
    ) -> Result<Record, Error> {
        job.reporter.step(ImportStep::Reading);
        let source = kind.recognize(&self.shared, given, (&job.space, &job.room)).await?;
        self.take_over(job, source.as_ref(), said).await
    }

    async fn take_over(&self, job: &Job, source: &dyn Source, said: &str) -> Result<Record, Error> {
        job.reporter.step(ImportStep::Reading);
        let image = source.image().await.map_err(unusable)?;
        image.config.check_platform(&Platform::here()).map_err(unusable)?;
        failpoint!("template.after_image");
        let taken = self.take_layers(job, &image.layers).await?;
        let Image { id, config, .. } = image;
        let content = Content {
            name: job.name.clone(),
            digest: id.to_string(),
            source: said.to_owned(),
            layers: taken.layers,
            over: None,
            config: Some(config),
            start: None,
        };
        self.write_down(job, content).await
    }

    /// The last step: from here on the template exists. The layers are pinned until then.
    pub(super) async fn write_down(&self, job: &Job, content: Content) -> Result<Record, Error> {
        job.reporter.step(ImportStep::Recording);
        let mut record = Record::new(content, self.shared.clock.wall());
        record.network = job.network.clone();
        record::check_len(&record)
            .map_err(|long| Error::SourceInvalid { problem: long.to_string() })?;
        self.shared.keep(&job.whose, &record).await?;
        failpoint!("template.after_record");
        let (name, digest) = (record.name.to_string(), record.digest.clone());
        let shared = job.whose == Whose::Shared;
        let subject = Subject { owner: job.claim.owner().clone(), sandbox: None };
        self.shared.emit(&subject, &EventKind::TemplateCreated { name, digest, shared });
        info!(name = %job.name, digest = record.digest, "a template is there");
        Ok(record)
    }
}

pub fn unusable(error: ImageError) -> Error {
    let problem = with_causes(&error);
    match error {
        ImageError::Registry(_) => Error::SourceUnavailable { problem },
        ImageError::Invalid { .. }
        | ImageError::SchemaOne
        | ImageError::MediaType { .. }
        | ImageError::NoPlatform { .. }
        | ImageError::NoSuchName { .. }
        | ImageError::SeveralImages { .. }
        | ImageError::Missing { .. }
        | ImageError::Unknown { .. }
        | ImageError::Io { .. } => Error::SourceInvalid { problem },
    }
}
