//! create: the first thing anybody does, so nothing on this path waits that need not.
//!
//! ```text
//!   idempotency key, slot (only who has one waits for them)
//!   ┌ home, meta `creating` ────────────────────────────────────┐
//!   └ row `creating` → volume → template's files, workspace → runtime's ───┴▶ launch (▶ clone) ▶ ┌ row `running`
//!                                                                                                └ meta `ready`
//! ```
//!
//! A row or a meta that says `creating` is each a full intent: reconcile removes everything that
//! goes by the id of either. So the home may be made beside the row, and the two outcomes be written
//! beside each other: a row says `running` only of a sandbox that does, and a meta that says `ready` is
//! reason enough to keep it. What comes before the row is found by those who look for it: a slot or a
//! key whose sandbox does not exist is free.

use std::sync::Arc;

use tokio::sync::oneshot;
use tracing::warn;

use super::fork::Origin;
use super::handle::Handle;
use super::supervisor::{Fate, Supervisor};
use crate::Broker;
use crate::error::Error;
use crate::health;
use crate::images::workspace::{self, Bringing};
use crate::policy::admission::{self, volume_quota};
use crate::records::idempotency::{self, Claim, Known, Vacancy};
use crate::shared::Shared;
use crate::view::View;
use sandkeep_core::{
    Event, HostPaths, IdempotencyKey, Labels, Operation, Owner, Principal, SandboxId, Spec,
    SpecDraft, Status, Terms, Verb, failpoint, with_causes,
};
use sandkeep_home::{DataDir, Meta, Phase};
use sandkeep_image::make_workdir;
use sandkeep_runtime::Plan;
use sandkeep_store::Revision;
use sandkeep_tree::Root;

/// Resolves when a sandbox is made, or is not.
pub(crate) type Created = oneshot::Receiver<Result<(), Error>>;

impl Broker {
    /// Makes and launches a sandbox.
    pub async fn create(&self, who: &Principal, draft: SpecDraft) -> Result<View, Error> {
        self.make(who, draft, None).await
    }

    /// The same, but only once under this key: whoever repeats it gets the sandbox of the first time.
    pub async fn create_once(
        &self,
        who: &Principal,
        draft: SpecDraft,
        key: IdempotencyKey,
    ) -> Result<View, Error> {
        let (broker, who) = (self.clone(), who.clone());
        // A caller that leaves is likely to ask again at once, and must find its first create under way.
        let flight = async move { broker.create_in_flight(&who, draft, key).await };
        self.shared.tasks.spawn(flight).await.unwrap_or(Err(Error::ShuttingDown))
    }

    async fn create_in_flight(
        &self,
        who: &Principal,
        draft: SpecDraft,
        key: IdempotencyKey,
    ) -> Result<View, Error> {
        let (shared, name) = (&self.shared, idempotency::entry_key(&key, who));
        // The owner too, because a key may be bound to a project.
        let fingerprint = idempotency::fingerprint(&(admission::owner(who, &draft)?, &draft));
        let _only = shared.creates.join(name.clone()).await;
        let now = shared.clock.wall();
        let revision = match shared.idempotency.look(&name, &fingerprint, now).await? {
            Known::Nothing(revision) => revision,
            Known::OtherRequest => return Err(Error::IdempotencyMismatch { key }),
            Known::Sandboxes(made) => match made.answer(shared, &key)?.map(|mut views| views.pop())
            {
                Ok(Some(view)) => return Ok(view),
                Ok(None) => None,
                Err(revision) => Some(revision),
            },
        };
        let vacancy = Vacancy { key: name, fingerprint, revision, at: now };
        self.make(who, draft, Some(vacancy)).await
    }

    async fn make(
        &self,
        who: &Principal,
        draft: SpecDraft,
        key: Option<Vacancy>,
    ) -> Result<View, Error> {
        let runtime = self.shared.runtime_label(draft.runtime.as_deref());
        let verbs = self.shared.telemetry.verbs();
        verbs.measure(Verb::Create, runtime, self.admit_and_make(who, draft, key)).await
    }

    async fn admit_and_make(
        &self,
        who: &Principal,
        draft: SpecDraft,
        key: Option<Vacancy>,
    ) -> Result<View, Error> {
        if self.shared.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        let owner = admission::owner(who, &draft)?;
        let slot = draft.slot.clone();
        let reach = draft.source.as_ref().map(|source| source.reach).unwrap_or_default();
        let admitted = admission::admit(&self.shared, &owner, draft).await?;
        health::refuse_when_full(&self.shared).await?;
        let bringing = self.open_source(who, &admitted.spec, reach).await?;
        let (spec, terms) = (admitted.spec.clone(), admitted.terms.clone());
        let mut meta = new_meta(&self.shared, owner, spec, terms);
        meta.slot = slot;
        admission::check_row(&meta)?;
        let claim = key.map(|key| key.claim(&self.shared.idempotency, vec![meta.id.clone()]));
        let (handle, created) = self.begin(meta, claim, bringing)?;
        // From here on the sandbox itself is seen to need its template's layers.
        drop(admitted);
        self.answer(&handle.id, created).await?;
        Ok(handle.view())
    }

    /// Finds a place for a sandbox that was admitted, and has its supervisor begin to make it.
    pub(crate) fn begin(
        &self,
        meta: Meta,
        claim: Option<Claim>,
        bringing: Option<Box<Bringing>>,
    ) -> Result<(Arc<Handle>, Created), Error> {
        let runtime = Arc::clone(self.shared.runtime(meta.spec.runtime())?);
        let (mut supervisor, handle) =
            Supervisor::new(&self.shared, runtime, meta, Status::creating(), None);
        supervisor.bringing = bringing;
        self.shared.admit(std::slice::from_ref(&handle))?;
        let (answer, created) = oneshot::channel();
        self.shared.tasks.spawn(begin(supervisor, claim, Origin::Template, answer));
        Ok((handle, created))
    }
}

/// The metadata of a sandbox that is made now.
pub(crate) fn new_meta(shared: &Shared, owner: Owner, spec: Spec, terms: Terms) -> Meta {
    let data = &shared.data;
    let labels = Labels { instance: data.instance().as_str().to_owned(), owner };
    let mut meta = Meta::new(SandboxId::random(), labels, spec, data.boot_id().to_owned());
    meta.began = shared.now();
    meta.created_at = meta.began.wall;
    meta.terms = terms;
    meta
}

impl Broker {
    /// What a sandbox is to be made with; what is wrong with that is said before anything is made.
    async fn open_source(
        &self,
        who: &Principal,
        spec: &Spec,
        reach: HostPaths,
    ) -> Result<Option<Box<Bringing>>, Error> {
        let Some(source) = spec.source().cloned() else { return Ok(None) };
        let opened = workspace::open(&self.shared, who, &source, reach).await?;
        Ok(Some(Box::new(Bringing { source, opened })))
    }
}

/// The life of a new sandbox's supervisor.
pub(crate) async fn begin(
    mut supervisor: Supervisor,
    claim: Option<Claim>,
    origin: Origin,
    answer: oneshot::Sender<Result<(), Error>>,
) {
    let (fate, result) = supervisor.create(claim, &origin).await;
    // What was held open for it is not needed any more.
    supervisor.bringing = None;
    if fate == Fate::Gone {
        supervisor.leave();
    }
    // Nobody may be waiting any more.
    let _ = answer.send(result);
    match fate {
        Fate::Lives => {
            supervisor.sync_meta().await;
            supervisor.run().await;
        }
        Fate::Gone => {}
    }
}

impl Supervisor {
    /// Makes and launches the sandbox. If that fails, all of it is removed again and the error is
    /// the first cause.
    pub(crate) async fn create(
        &mut self,
        mut key: Option<Claim>,
        origin: &Origin,
    ) -> (Fate, Result<(), Error>) {
        let (fate, result) = self.create_under(key.as_mut(), origin).await;
        if let (Err(_), Some(key)) = (&result, &key) {
            key.withdraw().await;
        }
        (fate, result)
    }

    async fn create_under(
        &mut self,
        mut key: Option<&mut Claim>,
        origin: &Origin,
    ) -> (Fate, Result<(), Error>) {
        if let Err(refused) = self.claim_names(key.as_deref_mut()).await {
            return (Fate::Gone, Err(refused));
        }
        let (cause, event) = match self.make(key, origin).await {
            Err(cause) => {
                let event = Event::Failed(Operation::Create, with_causes(&cause));
                (cause, event)
            }
            Ok(()) => match self.start_up().await {
                // It was made, and is taken back.
                Err(cause) => (cause, Event::Begin(Verb::Destroy)),
                Ok(()) => {
                    self.set_alarm();
                    failpoint!("create.before_answer");
                    return (Fate::Lives, Ok(()));
                }
            },
        };
        self.expect_death();
        let status = self.after(event);
        self.record_removal(status).await;
        let fate = match self.tear_down().await {
            Ok(()) => Fate::Gone,
            Err(error) => {
                // The row and the meta are there still and say so; reconcile comes back to it.
                warn!(id = %self.id(), %error, "cannot remove what a failed create left");
                Fate::Lives
            }
        };
        (fate, Err(cause))
    }

    /// Says, as well as it can, that what was made is to go: a crash from here on must not bring back
    /// a sandbox whose caller was told that there is none.
    async fn record_removal(&mut self, status: Status) {
        match self.revision {
            Some(_) => self.settle(status).await,
            // There is no row to correct.
            None => self.publish(status),
        }
        self.mark_destroying().await;
    }

    /// Takes the names that lead to this sandbox, before anything of it is made.
    async fn claim_names(&self, key: Option<&mut Claim>) -> Result<(), Error> {
        if let Some(key) = key {
            key.begin().await?;
            failpoint!("create.after_key");
        }
        if let Some(slot) = &self.meta.slot {
            self.shared.claim_slot(&self.meta.owner, slot, self.id()).await?;
            failpoint!("create.after_slot");
        }
        Ok(())
    }

    async fn make(&mut self, key: Option<&mut Claim>, origin: &Origin) -> Result<(), Error> {
        let (home, (revision, plan)) = tokio::join!(self.make_home(), self.make_parts(origin));
        self.revision = revision;
        home?;
        self.runtime.start(&plan?).await?;
        failpoint!("create.after_launch");
        let guest = self.enter().await?;
        self.finish_source(&guest).await?;
        self.expect_start_up().await?;
        failpoint!("create.after_source_finished");
        self.meta.phase = Phase::Ready;
        let status = self.after(Event::Done(Operation::Create));
        let running = async {
            let put = self.shared.registry.put(&self.meta, &status, self.revision).await;
            failpoint!("create.after_outcome");
            put
        };
        let ready = async {
            self.write_meta().await?;
            failpoint!("create.after_meta_ready");
            Ok::<(), Error>(())
        };
        let settled = async {
            if let Some(key) = key {
                key.made().await;
                failpoint!("create.after_key_outcome");
            }
        };
        let (running, ready, ()) = tokio::join!(running, ready, settled);
        self.revision = Some(running?);
        ready?;
        self.publish(status);
        Ok(())
    }

    async fn make_home(&self) -> Result<(), Error> {
        let (home, meta) = (self.home.clone(), self.meta.clone());
        let make = move |_: &DataDir| {
            home.create(&meta)?;
            home.sync_meta()
        };
        self.shared.blocking(make).await?;
        failpoint!("create.after_home");
        Ok(())
    }

    /// Records the intent, then makes the volume and what the runtime needs; the row's revision counts
    /// even if the rest fails.
    async fn make_parts(&self, origin: &Origin) -> (Option<Revision>, Result<Plan, Error>) {
        let revision = match self.shared.registry.put(&self.meta, &self.status(), None).await {
            Ok(revision) => revision,
            Err(error) => return (None, Err(error.into())),
        };
        failpoint!("create.after_intent");
        (Some(revision), self.make_volume_and_shell(origin).await)
    }

    async fn make_volume_and_shell(&self, origin: &Origin) -> Result<Plan, Error> {
        let root = match origin {
            Origin::Template => self.make_volume().await?,
            Origin::Snapshot { sandbox, snapshot } => self.fork_volume(sandbox, snapshot).await?,
        };
        let plan = self.plan(root)?;
        self.runtime.create(&plan).await?;
        failpoint!("create.after_runtime_create");
        Ok(plan)
    }

    async fn make_volume(&self) -> Result<Root, Error> {
        let template = self.shared.template_of(&self.meta.spec)?;
        let base = crate::images::base(&self.meta.spec)?;
        let quota = volume_quota(self.meta.spec.resources());
        let root = self.shared.storage.create(self.id(), &base, &quota).await?;
        failpoint!("create.after_volume");
        template.lay_out(&root, self.id()).await?;
        if let Some(defaults) = self.meta.spec.image_defaults() {
            make_workdir(&root, &defaults.workdir).await?;
        }
        failpoint!("create.after_template");
        self.bring_source(&root).await?;
        failpoint!("create.after_source");
        Ok(root)
    }
}
