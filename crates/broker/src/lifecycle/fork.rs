//! Forks: new sandboxes with the files of another one, at a snapshot or at present.
//!
//! ```text
//!   a transient snapshot, if none is named ─▶ slots for all ─▶ intent ─▶ creates, several at once ─▶ intent removed
//!                                                                           │
//!                                              one fails: all that were created are removed
//! ```
//!
//! Either all are created or none. The intent names them; a daemon that finds one removes all its sandboxes, because
//! their caller never got an answer. Removing the intent is the moment from which the forks exist.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};

use super::create::{Creation, NewSandbox, Origin, new_meta};
use super::handle::Handle;
use super::race::Row;
use super::supervisor::{Supervisor, denied_error};
use crate::Broker;
use crate::error::Error;
use crate::health;
use crate::network::{Values, secrets_of};
use crate::policy::admission::{self, volume_quota};
use crate::records::directory::{Share, request_name};
use crate::records::idempotency::{self, Claim, Known, Vacancy};
use crate::records::rows;
use crate::shared::Shared;
use crate::view::View;
use sandkeep_core::api::ForkPoint;
use sandkeep_core::event::EventKind;
use sandkeep_core::{
    IdempotencyKey, Principal, SandboxId, SandboxName, SnapshotId, SnapshotName, Terms, TermsPatch,
    Trigger, Verb, apply, failpoint, limits,
};
use sandkeep_home::DataDir;
use sandkeep_image::identity;
use sandkeep_store::{Key, Prefix, Revision, StateStore};
use sandkeep_tree::Root;

/// The first segment of every intent's key.
const FORKS: &str = "forks";

/// A fork request.
#[derive(Clone, Debug, Serialize)]
pub struct ForkDraft {
    /// The present, if left out.
    pub snapshot: Option<SnapshotName>,
    pub count: usize,
    /// Added to the sandbox's own; `None` removes a label.
    pub labels: BTreeMap<String, Option<String>>,
    /// Only for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<SandboxName>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Intent {
    sandboxes: Vec<SandboxId>,
    /// The node that creates them; `None` in rows of an earlier version.
    #[serde(default)]
    node: Option<String>,
}

/// A written intent.
struct Begun {
    key: Key,
    revision: Revision,
}

/// The source of forks.
struct ForkSource {
    handle: Arc<Handle>,
    snapshot: SnapshotId,
    /// As the caller named it; a transient snapshot has no name.
    named: Option<SnapshotName>,
}

/// Who asks for forks.
pub(super) enum For {
    /// A caller, who may repeat the request under an idempotency key.
    Caller(Option<Vacancy>),
    /// A race: its row names the forks before they are final, because it removes them.
    Race,
}

/// New forks, and the row of the race that they are for.
pub(super) struct Forked {
    pub handles: Vec<Arc<Handle>>,
    pub race: Option<Row>,
}

/// Whether the forks of a failed request have been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmade {
    All,
    NotYet,
}

impl Broker {
    /// Creates as many sandboxes as requested, or none. With an idempotency key, only once.
    pub async fn fork(
        &self,
        who: &Principal,
        id: &SandboxId,
        draft: ForkDraft,
        key: Option<IdempotencyKey>,
    ) -> Result<Vec<View>, Error> {
        check_count(draft.count)?;
        if draft.name.is_some() && draft.count != 1 {
            let problem = "only one sandbox can have it; leave it out, or make one fork".to_owned();
            return Err(Error::InvalidField { field: "name", problem });
        }
        let (broker, who, id) = (self.clone(), who.clone(), id.clone());
        // A caller that disconnects is likely to retry at once, and a partial set of forks is useless.
        let flight = async move { broker.fork_in_flight(&who, &id, draft, key).await };
        self.shared.tasks.spawn(flight).await.unwrap_or(Err(Error::ShuttingDown))
    }

    async fn fork_in_flight(
        &self,
        who: &Principal,
        id: &SandboxId,
        draft: ForkDraft,
        key: Option<IdempotencyKey>,
    ) -> Result<Vec<View>, Error> {
        let shared = &self.shared;
        let handle = shared.find(who, id)?;
        let runtime = shared.runtime_label(Some(handle.meta().spec.runtime()));
        let verbs = shared.telemetry.verbs();
        let Some(key) = key else {
            let forked = self.fork_all(handle, draft, For::Caller(None));
            return Ok(views(verbs.measure(Verb::Fork, runtime, forked).await?));
        };
        let name = request_name(&key, who);
        let fingerprint = idempotency::fingerprint(&(FORKS, id, &draft));
        let _only = shared.creates.join(name.clone()).await;
        let owner = handle.meta().owner.clone();
        match idempotency::look(shared, &key, name, fingerprint, &owner).await? {
            Known::Made(views) => Ok(views),
            Known::Nothing(vacancy) => {
                let forked = self.fork_all(handle, draft, For::Caller(Some(vacancy)));
                Ok(views(verbs.measure(Verb::Fork, runtime, forked).await?))
            }
        }
    }

    pub(super) async fn fork_all(
        &self,
        handle: Arc<Handle>,
        draft: ForkDraft,
        purpose: For,
    ) -> Result<Forked, Error> {
        handle.activity.touch();
        self.admit_forks(&handle, draft.count).await?;
        health::refuse_when_full(&self.shared).await?;
        let snapshot = match &draft.snapshot {
            Some(name) => handle.snapshot_named(name)?.id.clone(),
            None => handle.transient_snapshot(&self.shared).await?,
        };
        failpoint!("fork.after_snapshot");
        let source = ForkSource { handle, snapshot, named: draft.snapshot.clone() };
        let made = self.fork_from(&source, &draft, purpose).await;
        if source.named.is_none() {
            self.remove_transient(&source).await;
            failpoint!("fork.after_transient");
        }
        made.map_err(|error| source.why(&self.shared, error))
    }

    /// Checks before anything is done.
    async fn admit_forks(&self, source: &Handle, count: usize) -> Result<(), Error> {
        if self.shared.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        let status = source.published.borrow().status.clone();
        let denied = |denied| denied_error(source.id.clone(), denied);
        apply(&status, Trigger::Begin(Verb::Fork)).map_err(denied)?;
        source.volume.with_snapshots()?;
        let meta = source.meta();
        self.shared.usable_runtime(meta.spec.runtime())?;
        let share = Share::of(meta.spec.resources()).times(count as u64);
        self.shared.registry.refuse_over(&meta.owner, share, &self.shared.policy.quotas).await
    }

    /// A fork has the network of its source, or is not made.
    fn admit_network(&self, source: &ForkSource, terms: &Terms) -> Result<(), Error> {
        let runtime = self.shared.runtime(source.handle.meta().spec.runtime())?;
        self.shared.network.check_fork(&terms.network, runtime.as_ref())
    }

    /// If it cannot be removed now, reconcile removes it, because nothing refers to it.
    async fn remove_transient(&self, source: &ForkSource) {
        let (handle, snapshot) = (&source.handle, source.snapshot.clone());
        if let Err(error) = handle.delete_snapshot(&self.shared, snapshot).await {
            let id = &source.handle.id;
            debug!(%id, %error, "cannot remove the snapshot that forks were made from");
            source.handle.snapshots.forget(&source.snapshot);
        }
    }

    async fn fork_from(
        &self,
        source: &ForkSource,
        draft: &ForkDraft,
        purpose: For,
    ) -> Result<Forked, Error> {
        let unmade = self.places_for(source, draft).await?;
        let handles: Vec<Arc<Handle>> = unmade.iter().map(|new| Arc::clone(&new.handle)).collect();
        let ids: Vec<SandboxId> = handles.iter().map(|handle| handle.id.clone()).collect();
        let (mut claim, race) = match purpose {
            For::Caller(key) => {
                (key.map(|key| key.claim(&self.shared.directory, ids.clone())), None)
            }
            For::Race => {
                (None, Some(Row::begin(&source.handle.id, ids.clone(), self.shared.node())))
            }
        };
        let begun = match self.begin_forks(claim.as_mut(), race.as_ref(), &ids).await {
            Ok(begun) => begun,
            Err(error) => {
                ids.iter().for_each(|id| self.shared.release(id));
                forget(&self.shared, race.as_ref()).await;
                return Err(error);
            }
        };
        let made = self.make_forks(source, unmade).await;
        failpoint!("fork.after_made");
        if let Err(error) = made {
            // Otherwise the daemon that finds the intent removes the rest.
            if unmake(&self.shared, &handles).await == Unmade::All {
                begun.over(&self.shared).await?;
                forget(&self.shared, race.as_ref()).await;
            }
            if let Some(claim) = &claim {
                claim.withdraw().await;
            }
            return Err(error);
        }
        // Before the intent is removed: forks that turn out not to stay are then reported as destroyed.
        if let Some(subject) = &source.handle.execs.subject {
            let snapshot = source.named.clone();
            self.shared.emit(subject, &EventKind::SandboxForked { sandboxes: ids, snapshot });
        }
        failpoint!("fork.after_event");
        if let Err(error) = begun.over(&self.shared).await {
            if unmake(&self.shared, &handles).await == Unmade::All {
                forget(&self.shared, race.as_ref()).await;
            }
            return Err(error);
        }
        failpoint!("fork.after_outcome");
        if let Some(claim) = &mut claim {
            claim.made().await;
        }
        Ok(Forked { handles, race })
    }

    /// Takes slots for all of them at once, or for none.
    async fn places_for(
        &self,
        source: &ForkSource,
        draft: &ForkDraft,
    ) -> Result<Vec<NewSandbox>, Error> {
        let shared = &self.shared;
        let terms = terms_of(shared, source, draft)?;
        let secrets = secrets_of(shared, &source.handle.id, &terms.network).await?;
        self.admit_network(source, &terms)?;
        let runtime = shared.runtime(source.handle.meta().spec.runtime())?;
        let template = shared.template_of(&source.handle.meta().spec)?;
        // Until the forks are listed, only the source protects their layers.
        let _kept = shared.keep_layers().await;
        let unmade = (0..draft.count).map(|_| {
            let mut terms = terms.clone();
            terms.network = terms.network.renewed();
            let mut meta = new_meta(
                shared,
                source.handle.meta().owner.clone(),
                source.handle.meta().spec.clone(),
                terms,
            );
            meta.forked_from = Some(ForkPoint {
                sandbox: source.handle.id.clone(),
                snapshot: source.named.clone(),
            });
            meta.name = draft.name.clone();
            admission::check_row(&meta)?;
            let origin = Origin::Snapshot {
                sandbox: source.handle.id.clone(),
                snapshot: source.snapshot.clone(),
            };
            let (template, secrets): (_, Values) = (Arc::clone(&template), secrets.clone());
            let creation = Creation { template, origin, secrets, claim: None };
            Ok(NewSandbox::new(shared, Arc::clone(runtime), meta, creation))
        });
        let unmade = unmade.collect::<Result<Vec<NewSandbox>, Error>>()?;
        shared.supervised(&source.handle.id).ok_or_else(|| source.gone())?;
        let handles: Vec<_> = unmade.iter().map(|new| Arc::clone(&new.handle)).collect();
        shared.admit(&handles)?;
        Ok(unmade)
    }

    /// The idempotency key, if any, refers to the forks before the intent says that they are not final.
    async fn begin_forks(
        &self,
        claim: Option<&mut Claim>,
        race: Option<&Row>,
        ids: &[SandboxId],
    ) -> Result<Begun, Error> {
        if let Some(claim) = claim {
            claim.begin().await?;
            failpoint!("fork.after_key");
        }
        if let Some(row) = race {
            row.write(&self.shared).await?;
            failpoint!("race.after_intent");
        }
        let key = Key::new([FORKS, ids.first().map_or("", SandboxId::as_str)]);
        let intent = Intent { sandboxes: ids.to_vec(), node: self.shared.node() };
        let value = serde_json::to_vec(&intent).expect("an intent holds only strings");
        let revision = rows::put(&*self.shared.store, &key, value, None).await?;
        failpoint!("fork.after_intent");
        Ok(Begun { key, revision })
    }

    /// Creates them; returns when each of them is created or has failed.
    async fn make_forks(&self, source: &ForkSource, unmade: Vec<NewSandbox>) -> Result<(), Error> {
        let _all_of_it = source.handle.snapshots.reading().await;
        let makings = unmade.into_iter().map(|new| async { new.make(&self.shared).await });
        let made: Vec<Result<(), Error>> =
            futures_util::stream::iter(makings).buffered(limits::FORKS_AT_ONCE).collect().await;
        made.into_iter().collect()
    }
}

pub(super) fn check_count(count: usize) -> Result<(), Error> {
    if (1..=limits::FORKS_MAX).contains(&count) {
        Ok(())
    } else {
        let problem = format!("from 1 to {}", limits::FORKS_MAX);
        Err(Error::InvalidField { field: "count", problem })
    }
}

fn views(forked: Forked) -> Vec<View> {
    forked.handles.iter().map(|handle| handle.view()).collect()
}

/// The forks of a race are gone. If its row cannot be removed now, the next daemon finds nothing to do.
async fn forget(shared: &Shared, race: Option<&Row>) {
    let Some(row) = race else { return };
    if let Err(error) = row.over(shared).await {
        warn!(%error, "cannot remove the record of a race");
    }
}

/// Removes the forks that were created.
pub(super) async fn unmake(shared: &Shared, handles: &[Arc<Handle>]) -> Unmade {
    let removals = handles.iter().map(|handle| async move {
        match handle.remove(shared).await {
            Ok(()) | Err(Error::NotFound { .. }) => Unmade::All,
            Err(error) => {
                warn!(id = %handle.id, %error, "cannot remove a fork");
                Unmade::NotYet
            }
        }
    });
    let all = futures_util::future::join_all(removals).await;
    if all.contains(&Unmade::NotYet) { Unmade::NotYet } else { Unmade::All }
}

impl ForkSource {
    fn gone(&self) -> Error {
        Error::NotFound { id: self.handle.id.clone() }
    }

    /// The first cause: the source, or its snapshot, may have been removed during the fork.
    fn why(&self, shared: &Shared, error: Error) -> Error {
        if shared.supervised(&self.handle.id).is_none() {
            return self.gone();
        }
        match &self.named {
            Some(name) if self.handle.snapshots.get(&self.snapshot).is_none() => {
                super::snapshot::not_found(&self.handle.id, name)
            }
            Some(_) | None => error,
        }
    }
}

impl Begun {
    async fn over(&self, shared: &Shared) -> Result<(), Error> {
        Ok(rows::remove(&*shared.store, &self.key, Some(self.revision)).await?)
    }
}

/// The terms of a fork are its source's, counted from now.
fn terms_of(shared: &Shared, source: &ForkSource, draft: &ForkDraft) -> Result<Terms, Error> {
    let labels = Some(Some(draft.labels.clone()));
    let patch = TermsPatch { labels, ..TermsPatch::default() };
    let terms =
        source.handle.published.borrow().meta.terms.patched(&patch, &shared.policy.timeouts)?;
    Ok(terms)
}

/// Removes forks that an earlier daemon did not finish. Runs before any new fork can start.
pub(crate) async fn sweep(shared: &Arc<Shared>) -> Result<(), Error> {
    for entry in shared.store.list(&Prefix::new([FORKS])).await?.entries {
        let intent = serde_json::from_slice::<Intent>(&entry.value).ok();
        if shared.is_elsewhere(intent.as_ref().and_then(|intent| intent.node.as_deref())) {
            continue;
        }
        let sandboxes = intent.map(|intent| intent.sandboxes).unwrap_or_default();
        for handle in sandboxes.iter().filter_map(|id| shared.supervised(id)) {
            match handle.remove(shared).await {
                Ok(()) | Err(Error::NotFound { .. }) => {
                    info!(id = %handle.id, "removed a fork that nobody was told of")
                }
                Err(error) => warn!(id = %handle.id, %error, "cannot remove a fork yet"),
            }
        }
        rows::remove(&*shared.store, &entry.key, Some(entry.revision)).await?;
    }
    Ok(())
}

impl Supervisor {
    pub(super) async fn fork_volume(
        &self,
        sandbox: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<Root, Error> {
        let quota = volume_quota(self.meta.spec.resources());
        let volume = self.volume.with_snapshots()?;
        let root = self.unless_destroyed(volume.fork_from(sandbox, snapshot, &quota)).await?;
        failpoint!("fork.after_volume");
        // A fork near its limit could not even rewrite the files that it starts with.
        self.volume.tend().await;
        let (own, id) = (root.own_dir().to_owned(), self.id().clone());
        let renewed = self.shared.blocking(move |_: &DataDir| identity::renew(&own, &id)).await;
        renewed.map_err(|error| match error {
            Error::DataDir { source, .. } => self.not_renewed(source),
            other => other,
        })?;
        failpoint!("fork.after_identity");
        Ok(root)
    }

    fn not_renewed(&self, source: io::Error) -> Error {
        let reason = format!("cannot give it an identity of its own: {source}");
        Error::SandboxFailed { id: self.id().clone(), reason }
    }
}
