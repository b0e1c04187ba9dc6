//! create: the first thing anybody does, so nothing on this path waits that need not.
//!
//! ```text
//!   row `creating` first, then quotas, idempotency key, slot (only who has any of them waits for that)
//!   ┌ home, meta `creating` ────────────────────────────────────┐
//!   └ row `creating` → volume → template's files, workspace → runtime's ───┴▶ launch (▶ clone) ▶ ┌ row `running`
//!                                                                                                └ meta `ready`
//! ```
//!
//! A row or a meta that says `creating` is each a full intent: reconcile removes everything that
//! goes by the id of either. So the home may be made beside the row, and the two outcomes be written
//! beside each other: a row says `running` only of a sandbox that does, and a meta that says `ready` is
//! reason enough to keep it. The row is first in and last out: a slot or a key
//! whose sandbox has none is free.

use tracing::warn;

use crate::error::Error;
use crate::lifecycle::supervisor::{Fate, Supervisor};
use crate::lifecycle::verbs::Origin;
use crate::policy::admission::volume_quota;
use crate::records::idempotency::Claim;
use sandkeep_core::{Event, Operation, SlotName, Status, Verb, failpoint, with_causes};
use sandkeep_home::{DataDir, Phase};
use sandkeep_image::make_workdir;
use sandkeep_runtime::Plan;
use sandkeep_store::Revision;
use sandkeep_tree::Root;

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
        if let Err(refused) = self.claim_place(key.as_deref_mut()).await {
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

    /// Takes all that others might take, too, before anything of the sandbox is made: first its row, by whose rank its
    /// owner's quotas are kept, then the names that lead to it. Without any of these the row is written beside the
    /// home.
    async fn claim_place(&mut self, mut key: Option<&mut Claim>) -> Result<(), Error> {
        let counted = self.shared.policy.quotas.count_sandboxes();
        if key.is_none() && self.meta.slot.is_none() && !counted {
            return Ok(());
        }
        let claimed = self.claim_row_and_names(key.as_deref_mut(), counted).await;
        if claimed.is_err() {
            if let Some(key) = key {
                key.withdraw().await;
            }
            let row = self.shared.registry.delete(&self.meta.owner, self.id(), self.revision);
            if let Err(error) = row.await {
                // Nobody supervises it any more, so reconcile removes it.
                warn!(id = %self.id(), %error, "cannot take a row back");
            }
        }
        claimed
    }

    async fn claim_row_and_names(
        &mut self,
        key: Option<&mut Claim>,
        counted: bool,
    ) -> Result<(), Error> {
        let registry = &self.shared.registry;
        let revision = registry.put(&self.meta, &self.status(), None).await?;
        self.revision = Some(revision);
        failpoint!("create.after_row");
        if counted {
            let quotas = &self.shared.policy.quotas;
            registry.within_quotas(&self.meta, revision, quotas).await?;
        }
        if let Some(key) = key {
            key.begin().await?;
            failpoint!("create.after_key");
        }
        if let Some(slot) = self.meta.slot.clone() {
            self.claim_slot(&slot).await?;
            failpoint!("create.after_slot");
        }
        Ok(())
    }

    /// Claims a slot for a sandbox that has its row already.
    pub(crate) async fn claim_slot(&self, slot: &SlotName) -> Result<(), Error> {
        match self.shared.directory.claim_slot(&self.meta.owner, slot, self.id()).await? {
            None => Ok(()),
            Some(holder) => Err(Error::SlotTaken { slot: slot.clone(), holder }),
        }
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
        let revision = match self.revision {
            Some(revision) => revision,
            None => match self.shared.registry.put(&self.meta, &self.status(), None).await {
                Ok(revision) => revision,
                Err(error) => return (None, Err(error.into())),
            },
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
