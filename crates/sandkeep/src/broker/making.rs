//! The making of sandboxes: admission, a place, a supervisor, and under a key only once.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::idempotency::{self, Answered, Claim, IdempotencyKey, Known, Vacancy};
use super::supervisor::{Fate, Supervisor};
use super::view::View;
use super::{Broker, admission};
use crate::error::Error;
use crate::home::Meta;
use crate::runtime::Labels;
use crate::sandbox::{Principal, SandboxId, SpecDraft, Status, Verb};

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
        let (shared, name) = (&self.shared, key.of(who));
        let fingerprint = idempotency::fingerprint(&admission::owner(who, &draft)?, &draft);
        let _only = shared.creates.join(name.clone()).await;
        let now = shared.clock.wall();
        let revision = match shared.idempotency.look(&name, &fingerprint, now).await? {
            Known::Nothing(revision) => revision,
            Known::OtherRequest => return Err(Error::IdempotencyMismatch { key }),
            Known::Sandbox { id, answered, revision } => match (shared.supervised(&id), answered) {
                (Some(handle), _) => return Ok(handle.view()),
                (None, Answered::Surely) => return Err(Error::IdempotencyGone { key, id }),
                (None, Answered::Perhaps) => Some(revision),
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
        let admitted = admission::admit(&self.shared, &owner, draft).await?;
        let runtime = Arc::clone(self.shared.runtime(admitted.spec.runtime())?);
        let data = &self.shared.data;
        let labels = Labels { instance: data.instance().as_str().to_owned(), owner };
        let (spec, terms) = (admitted.spec.clone(), admitted.terms.clone());
        let mut meta = Meta::new(SandboxId::random(), labels, spec, data.boot_id().to_owned());
        meta.began = self.shared.now();
        meta.created_at = meta.began.wall;
        (meta.terms, meta.slot) = (terms, slot);
        admission::check_row(&meta)?;
        let claim = key.map(|key| key.claim(&self.shared.idempotency, meta.id.clone()));
        let (supervisor, handle) =
            Supervisor::new(&self.shared, runtime, meta, Status::creating(), None);
        self.shared.admit(Arc::clone(&handle))?;
        // From here on the sandbox itself is seen to need its template's layers.
        drop(admitted);
        let (answer, created) = oneshot::channel();
        self.shared.tasks.spawn(begin(supervisor, claim, answer));
        self.answer(&handle.id, created).await?;
        Ok(handle.view())
    }
}

/// The life of a new sandbox's supervisor.
async fn begin(
    mut supervisor: Supervisor,
    claim: Option<Claim>,
    answer: oneshot::Sender<Result<(), Error>>,
) {
    let (fate, result) = supervisor.create(claim).await;
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
