//! create: the most time-critical verb, so nothing on this path waits unnecessarily.
//!
//! ```text
//!   row `creating` first, then quotas, idempotency key, name, slot (only who has any of them waits for that)
//!                           ┌▶ meta synced ────────────────────────────────────────────────────────────┐
//!   ┌ home, meta `creating` ┴▶ reserve ───────────────────────┐                                          │
//!   └ row `creating` → volume → template's files, workspace ──┴▶ runtime's ▶ launch (▶ clone ▶ base) ────┴▶ ┌ row `running`
//!                                                                                                          └ meta `ready`
//! ```
//!
//! Both a row and a meta that say `creating` are a full intent: reconcile removes everything with the id of either. So
//! the home may be created concurrently with the row, and the two outcomes written concurrently: a row says `running`
//! only for a sandbox that runs, and a meta that says `ready` is sufficient to keep the sandbox. The row is written
//! first and deleted last: a slot or a key whose sandbox has no row is free.

use std::sync::Arc;

use tracing::warn;

use super::handle::Handle;
use super::request::{Answer, Command};
use super::supervisor::{Fate, Supervisor, telling::PublishedState};
use super::volume::{Stored, Volume};
use crate::Broker;
use crate::codebases;
use crate::error::Error;
use crate::health;
use crate::images::workspace::{self, Bringing};
use crate::network::Values;
use crate::policy::admission::{self, volume_quota};
use crate::records::directory::request_name;
use crate::records::idempotency::{self, Claim, Known, Vacancy};
use crate::shared::Shared;
use crate::view::View;
use sandkeep_core::{
    FileLocation, IdempotencyKey, Labels, Operation, Owner, Principal, SandboxId, SlotName,
    SnapshotId, Spec, SpecDraft, Status, Terms, Trigger, Verb, failpoint, with_causes,
};
use sandkeep_home::{Meta, Phase};
use sandkeep_image::{Template, make_workdir};
use sandkeep_runtime::Runtime;
use sandkeep_traces::{step, within};
use sandkeep_tree::Root;

/// The supervisor's input for creating an admitted sandbox.
pub(crate) struct Creation {
    pub template: Arc<dyn Template>,
    pub origin: Origin,
    /// The values of its secrets.
    pub secrets: Values,
    pub claim: Option<Claim>,
}

/// The initial content of a new volume.
pub(crate) enum Origin {
    /// The template's files, and a workspace if requested.
    Template(Option<Bringing>),
    Snapshot {
        sandbox: SandboxId,
        snapshot: SnapshotId,
    },
}

/// A sandbox whose creation has not started. The create is the first command in its supervisor's queue.
pub(crate) struct NewSandbox {
    supervisor: Supervisor,
    pub handle: Arc<Handle>,
    created: Answer<()>,
}

impl NewSandbox {
    pub fn new(
        shared: &Arc<Shared>,
        runtime: Arc<dyn Runtime>,
        meta: Meta,
        creation: Creation,
    ) -> Self {
        let (mut supervisor, handle) =
            Supervisor::new(shared, runtime, meta, Status::creating(), None);
        supervisor.told = PublishedState::Nothing;
        let create = |reply| Command::Create(Box::new(creation), reply);
        let created = handle.enqueue(create).expect("a new queue is empty and open");
        Self { supervisor, handle, created }
    }

    /// Has the supervisor create it, once it has a slot. It is created whether or not anybody still waits.
    pub fn make(self, shared: &Arc<Shared>) -> impl Future<Output = Result<(), Error>> + Send {
        let Self { supervisor, handle, created } = self;
        shared.tasks.spawn_apart(supervisor.run());
        async move { handle.answer(shared, created).await }
    }
}

/// The metadata of a new sandbox.
pub(crate) fn new_meta(shared: &Shared, owner: Owner, spec: Spec, terms: Terms) -> Meta {
    let data = &shared.data;
    let labels = Labels { instance: data.instance().as_str().to_owned(), owner };
    let mut meta = Meta::new(SandboxId::random(), labels, spec, data.boot_id().to_owned());
    meta.began = shared.now();
    meta.created_at = meta.began.wall;
    meta.terms = terms;
    meta.terms.network.prepared = meta.terms.network.needs();
    meta
}

impl Broker {
    /// Creates and launches a sandbox.
    pub async fn create(&self, who: &Principal, draft: SpecDraft) -> Result<View, Error> {
        self.admit_and_create(who, draft, None).await
    }

    /// The same, but only once under this key: a repeated request gets the sandbox of the first.
    pub async fn create_once(
        &self,
        who: &Principal,
        draft: SpecDraft,
        key: IdempotencyKey,
    ) -> Result<View, Error> {
        let (broker, who) = (self.clone(), who.clone());
        let flight = async move {
            let (shared, name) = (&broker.shared, request_name(&key, &who));
            let owner = admission::owner(&who, &draft)?;
            // Including the owner, because a key may be bound to a project.
            let hidden = idempotency::without_values(&draft, shared.data.secret());
            let fingerprint = idempotency::fingerprint(&(&owner, hidden));
            let _only = shared.creates.join(name.clone()).await;
            match idempotency::look(shared, &key, name, fingerprint, &owner).await? {
                Known::Made(mut views) => Ok(views.pop().expect("a create makes one sandbox")),
                Known::Nothing(vacancy) => {
                    broker.admit_and_create(&who, draft, Some(vacancy)).await
                }
            }
        };
        // A caller that disconnects is likely to retry at once, and must find its first create in progress.
        let flight = self.shared.tasks.spawn(flight);
        flight.await.unwrap_or(Err(Error::ShuttingDown))
    }

    async fn admit_and_create(
        &self,
        who: &Principal,
        draft: SpecDraft,
        key: Option<Vacancy>,
    ) -> Result<View, Error> {
        let shared = &self.shared;
        let runtime = shared.runtime_label(draft.runtime.as_deref());
        let created = async {
            if shared.closing.is_cancelled() {
                return Err(Error::ShuttingDown);
            }
            let owner = admission::owner(who, &draft)?;
            let (slot, name) = (draft.slot.clone(), draft.name.clone());
            let secrets = draft.secrets.iter().flatten();
            let secrets =
                secrets.map(|(name, secret)| (name.clone(), secret.value.clone())).collect();
            let reach = draft.source.as_ref().map(|source| source.reach).unwrap_or_default();
            let codebase = codebases::wanted(shared, who, &draft)?;
            let mut admitted =
                within(step!("admission"), admission::admit(shared, &owner, draft)).await?;
            if let Some(codebase) = codebase {
                let spec = admitted.spec.clone();
                admitted.spec = codebase.attach(admitted.runtime.as_ref(), spec)?;
            }
            if admitted.spec.keeper() == FileLocation::Storage {
                health::refuse_when_full(shared).await?;
            }
            // Errors of a source are returned before anything is created.
            let workspace = match admitted.spec.source().cloned() {
                Some(source) => {
                    let opened = workspace::open(shared, who, &source, reach).await?;
                    Some(Bringing { source, opened })
                }
                None => None,
            };
            let mut meta = new_meta(shared, owner, admitted.spec.clone(), admitted.terms.clone());
            (meta.slot, meta.name) = (slot, name);
            admission::check_row(&meta)?;
            let claim = key.map(|key| key.claim(&shared.directory, vec![meta.id.clone()]));
            let template = Arc::clone(&admitted.template.template);
            let origin = Origin::Template(workspace);
            let creation = Creation { template, origin, secrets, claim };
            let new = NewSandbox::new(shared, Arc::clone(admitted.runtime), meta, creation);
            shared.admit(std::slice::from_ref(&new.handle))?;
            // From here on the sandbox itself protects its template's layers.
            drop(admitted);
            let handle = Arc::clone(&new.handle);
            new.make(shared).await?;
            Ok(handle.view())
        };
        shared.telemetry.verbs().measure(Verb::Create, runtime, created).await
    }
}

impl Supervisor {
    /// Creates and launches the sandbox. On failure, everything is removed again and the error is the first cause.
    pub(crate) async fn create(&mut self, creation: Creation) -> (Fate, Result<(), Error>) {
        let Creation { template, origin, secrets, mut claim } = creation;
        let (fate, result) = match self.claim_place(claim.as_mut()).await {
            Err(refused) => (Fate::Gone, Err(refused)),
            Ok(()) => match self.make(template.as_ref(), &origin, &secrets, claim.as_mut()).await {
                Ok(()) => (Fate::Lives, Ok(())),
                Err(cause) => (self.unmake(&cause).await, Err(cause)),
            },
        };
        if let (Err(_), Some(claim)) = (&result, &claim) {
            claim.withdraw().await;
        }
        if result.is_err() && self.status().operation() == Some(Operation::Create) {
            self.take_row_back().await;
        }
        (fate, result)
    }

    /// Takes everything that others compete for, before anything of the sandbox is created: first its row, whose rank
    /// decides its owner's quotas, then the names that lead to it. A sandbox that needs none of these has its row
    /// written concurrently with its home.
    async fn claim_place(&mut self, claim: Option<&mut Claim>) -> Result<(), Error> {
        let counted = self.shared.policy.quotas.count_sandboxes();
        let named = self.meta.slot.is_some() || self.meta.name.is_some();
        if claim.is_none() && !named && !counted {
            return Ok(());
        }
        let registry = &self.shared.registry;
        let revision = registry.put(&self.meta, &self.status(), None).await?;
        self.revision = Some(revision);
        failpoint!("create.after_row");
        if counted {
            let quotas = &self.shared.policy.quotas;
            registry.within_quotas(&self.meta, revision, quotas).await?;
        }
        if let Some(claim) = claim {
            claim.begin().await?;
            failpoint!("create.after_key");
        }
        if let Some(name) = self.meta.name.clone() {
            self.claim_name(&name).await?;
            failpoint!("create.after_name");
        }
        if let Some(slot) = self.meta.slot.clone() {
            self.claim_slot(&slot).await?;
            failpoint!("create.after_slot");
        }
        Ok(())
    }

    /// Removes the row of a sandbox of which nothing else was created.
    async fn take_row_back(&self) {
        // A slot that was refused is the last of the claims, so only the name may be its own.
        if let Some(name) = &self.meta.name {
            self.free_name(name).await;
        }
        let row = self.shared.registry.delete(&self.meta.owner, self.id(), self.revision);
        if let Err(error) = row.await {
            // It has no supervisor any more, so reconcile removes it.
            warn!(id = %self.id(), %error, "cannot take a row back");
        }
    }

    /// Claims a slot for a sandbox that already has its row.
    pub(crate) async fn claim_slot(&self, slot: &SlotName) -> Result<(), Error> {
        match self.shared.directory.claim_slot(&self.meta.owner, slot, self.id()).await? {
            None => Ok(()),
            Some(holder) => Err(Error::SlotTaken { slot: slot.clone(), holder }),
        }
    }

    /// The steps of the diagram above.
    async fn make(
        &mut self,
        template: &dyn Template,
        origin: &Origin,
        secrets: &Values,
        claim: Option<&mut Claim>,
    ) -> Result<(), Error> {
        let home = async {
            let (home, meta) = (self.home.clone(), self.meta.clone());
            self.shared.blocking(move |_| home.create(&meta)).await?;
            failpoint!("create.after_home");
            let home = self.home.clone();
            let synced = self.shared.blocking(move |_| home.sync_meta());
            self.runtime.reserve(self.id(), self.meta.spec.resources()).await?;
            failpoint!("create.after_reserve");
            self.keep_secrets(secrets).await?;
            Ok::<_, Error>(synced)
        };
        // The row's revision must be kept even if the rest fails.
        let mut revision = self.revision;
        let parts = async {
            if revision.is_none() {
                let status = self.status();
                revision = Some(self.shared.registry.put(&self.meta, &status, None).await?);
            }
            failpoint!("create.after_intent");
            let root = match origin {
                Origin::Template(workspace) => match &self.volume {
                    Volume::Stored(volume) => {
                        Some(self.fill_volume(volume, template, workspace.as_ref()).await?)
                    }
                    Volume::Remote { .. } => None,
                },
                Origin::Snapshot { sandbox, snapshot } => {
                    Some(self.fork_volume(sandbox, snapshot).await?)
                }
            };
            self.install_certificate(root.as_ref()).await?;
            let plan = self.plan(template, root).await?;
            within(step!("runtime.create"), self.runtime.create(&plan)).await?;
            failpoint!("create.after_runtime_create");
            Ok::<_, Error>(plan)
        };
        let (home, plan) = tokio::join!(home, parts);
        self.revision = revision;
        let synced = home?;
        let plan = plan?;
        if let Origin::Snapshot { .. } = origin {
            self.seal_base().await?;
        }
        within(step!("runtime.start"), self.runtime.start(&plan)).await?;
        failpoint!("create.after_launch");
        self.open_network().await?;
        let guest = self.enter().await?;
        if let Origin::Template(Some(workspace)) = origin {
            self.finish_source(workspace, &guest).await?;
            self.seal_base().await?;
        }
        let starts_up = self.template_start_up().is_some();
        if starts_up {
            self.expect_start_up().await?;
        }
        failpoint!("create.after_source_finished");
        synced.await?;
        self.record_made(claim).await?;
        if starts_up {
            self.start_up().await?;
        }
        self.set_alarm();
        failpoint!("create.before_answer");
        Ok(())
    }

    /// Creates the volume, with everything that it contains before the first command.
    async fn fill_volume(
        &self,
        volume: &Stored,
        template: &dyn Template,
        workspace: Option<&Bringing>,
    ) -> Result<Root, Error> {
        let quota = volume_quota(self.meta.spec.resources());
        let root = volume.create(&self.meta.spec, &quota).await?;
        failpoint!("create.after_volume");
        match template.lay_out(&root, self.id()).await {
            Err(error) if error.is_for_want_of_room() => {
                self.shared.storage.reclaim().await?;
                template.lay_out(&root, self.id()).await?;
            }
            laid_out => laid_out?,
        }
        if let Some(defaults) = self.meta.spec.image_defaults() {
            make_workdir(&root, &defaults.workdir).await?;
        }
        if let Some(codebase) = self.meta.spec.codebase() {
            make_workdir(&root, &codebase.path).await?;
        }
        failpoint!("create.after_template");
        if let Some(workspace) = workspace {
            self.bring_source(workspace, &root).await?;
        }
        failpoint!("create.after_source");
        Ok(root)
    }

    /// Records the outcome: in the row, in the metadata and under the idempotency key.
    async fn record_made(&mut self, claim: Option<&mut Claim>) -> Result<(), Error> {
        self.meta_mut().phase = Phase::Ready;
        let status = self.after(Trigger::Done(Operation::Create));
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
            if let Some(claim) = claim {
                claim.made().await;
                failpoint!("create.after_key_outcome");
            }
        };
        let (running, ready, ()) = tokio::join!(running, ready, settled);
        self.revision = Some(running?);
        ready?;
        self.publish(status);
        Ok(())
    }

    /// Removes what was created. First it records, as far as possible, that everything is to be removed: a crash from
    /// here on must not bring back a sandbox whose caller got an error.
    async fn unmake(&mut self, cause: &Error) -> Fate {
        self.expect_death();
        let event = if self.status().operation() == Some(Operation::Create) {
            Trigger::Failed(Operation::Create, with_causes(cause))
        } else {
            // It was created, and is removed again.
            Trigger::Begin(Verb::Destroy)
        };
        let status = self.after(event);
        match self.revision {
            Some(_) => self.settle(status).await,
            // There is no row to correct.
            None => self.publish(status),
        }
        match self.tear_down().await {
            Ok(()) => Fate::Gone,
            Err(error) => {
                // The row and the meta still exist and say so; reconcile removes the rest.
                warn!(id = %self.id(), %error, "cannot remove what a failed create left");
                Fate::Lives
            }
        }
    }
}
