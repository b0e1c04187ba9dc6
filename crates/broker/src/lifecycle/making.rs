//! The making of sandboxes: admission, a place, a supervisor, and under a key only once.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::supervisor::{Fate, Supervisor};
use super::verbs::Origin;
use crate::Broker;
use crate::error::Error;
use crate::images::workspace::{self, Bringing};
use crate::records::directory::request_name;
use crate::records::idempotency::{self, Claim, Known, Vacancy};
use crate::shared::{Handle, Shared};
use crate::view::View;
use crate::{health, policy::admission};
use sandkeep_core::{
    HostPaths, IdempotencyKey, Labels, Owner, Principal, SandboxId, Spec, SpecDraft, Status, Terms,
    Verb,
};
use sandkeep_home::Meta;

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
        let (shared, name) = (&self.shared, request_name(&key, who));
        let owner = admission::owner(who, &draft)?;
        // The owner too, because a key may be bound to a project.
        let fingerprint = idempotency::fingerprint(&(&owner, &draft));
        let _only = shared.creates.join(name.clone()).await;
        let now = shared.clock.wall();
        let revision = match idempotency::look(&*shared.directory, &name, &fingerprint, now).await?
        {
            Known::Nothing(revision) => revision,
            Known::OtherRequest => return Err(Error::IdempotencyMismatch { key }),
            Known::Sandboxes(made) => {
                let answer = made.answer(shared, &key, &owner).await?;
                match answer.map(|mut views| views.pop()) {
                    Ok(Some(view)) => return Ok(view),
                    Ok(None) => None,
                    Err(revision) => Some(revision),
                }
            }
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
        let claim = key.map(|key| key.claim(&self.shared.directory, vec![meta.id.clone()]));
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
