//! Brings the registry, the homes and the runtimes into agreement, on start and at intervals.
//!
//! A sandbox with a supervisor is left to it. Every other sandbox is handled in four steps: claim it, so that nothing
//! else touches it; then gather the evidence, which can no longer change; judge ([`judge`], a pure function); act.

mod judge;
mod recover;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use tracing::{error, info, warn};

use super::reaper;
use super::request::Command;
use super::snapshot::{self, InStorage};
use super::supervisor::{Fate, Supervisor};
use crate::error::Error;
use crate::execs::rejoin;
use crate::health;
use crate::images::cache_volumes;
use crate::records::events::Revisited;
use crate::records::registry::Row;
use crate::records::timeline;
use crate::shared::Shared;
use judge::{Case, Copy, Evidence, Verdict, judge};
use sandkeep_core::{Liveness, SandboxId, State, limits};
use sandkeep_runtime::{MissingRuntime, Usable};

/// Repeats until the broker closes.
pub(crate) async fn at_intervals(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = shared.closing.cancelled() => return,
            () = tokio::time::sleep(limits::RECONCILE_INTERVAL) => {}
        }
        repeat_destroys(&shared);
        join_all(shared.runtimes.iter().map(|runtime| runtime.look_again())).await;
        health::refresh(&shared);
        let looked = async {
            once(&shared).await?;
            shared.directory.sweep_claims().await?;
            snapshot::sweep(&shared).await?;
            crate::codebases::sweep(&shared).await;
            crate::images::collect(&shared).await
        };
        if let Err(error) = looked.await {
            error!(%error, "cannot reconcile; it will be tried again");
        }
    }
}

/// Has the storage enforce its limits in the background, until the broker closes.
pub(crate) async fn tend_limits(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = shared.closing.cancelled() => return,
            () = tokio::time::sleep(limits::TEND_INTERVAL) => {}
        }
        if let Err(error) = shared.storage.tend(None).await {
            warn!(%error, "cannot look after the limits of volumes");
        }
    }
}

/// A failed destroy is recorded, and repeated until it succeeds.
fn repeat_destroys(shared: &Shared) {
    for handle in shared.handles() {
        if handle.published.borrow().status.state() == State::Destroying {
            reaper::tell(&handle, Command::Destroy);
        }
    }
}

/// Handles everything without a supervisor.
pub(crate) async fn once(shared: &Arc<Shared>) -> Result<(), Error> {
    let claims = claim(shared).await?;
    if claims.is_empty() {
        return Ok(());
    }
    let mut rows: HashMap<SandboxId, Row> = shared.registry.rows().await?.into_iter().collect();
    for claim in &claims {
        mend(claim, rows.get(&claim.id)).await;
    }
    let RuntimeReports { alive, silent } = listen(shared).await;
    let traces = Traces::look(shared).await?;
    let actions = claims.into_iter().map(|claim| {
        let row = rows.remove(&claim.id);
        let liveness = alive.get(&claim.id).copied();
        settle(claim, row, liveness, &silent, &traces)
    });
    futures_util::stream::iter(actions)
        .buffer_unordered(limits::RECOVERIES_AT_ONCE)
        .for_each(|()| std::future::ready(()))
        .await;
    Ok(())
}

/// Logs what belongs to no sandbox. It is left alone: a person must decide.
pub(crate) async fn report_orphans(shared: &Shared) {
    let supervised = supervised(shared);
    match ownerless_volumes(shared, &supervised).await {
        Ok(volumes) => {
            for id in volumes {
                warn!(%id, "a volume has neither a row nor metadata; it is left alone");
            }
        }
        Err(error) => warn!(%error, "cannot list volumes"),
    }
    for runtime in shared.runtimes.iter().filter(|runtime| runtime.usable() == Usable::Yes) {
        let found = runtime.list().await.unwrap_or_default();
        for found in found.iter().filter(|found| !supervised.contains(&found.id)) {
            let (id, runtime) = (&found.id, runtime.name());
            warn!(%id, runtime, "a sandbox has neither a row nor metadata; it is left alone");
        }
    }
}

/// Removes volumes that belong to no sandbox. Only for a broker whose registry ends with it: there, a create that was
/// killed before it wrote its metadata leaves a volume that nothing else refers to.
pub(crate) async fn remove_orphans(shared: &Shared) -> Result<(), Error> {
    for id in ownerless_volumes(shared, &supervised(shared)).await? {
        shared.storage.destroy(&id).await?;
        info!(%id, "removed the volume of a create that was cut short");
    }
    Ok(())
}

fn supervised(shared: &Shared) -> BTreeSet<SandboxId> {
    shared.handles().iter().map(|handle| handle.id.clone()).collect()
}

async fn ownerless_volumes(
    shared: &Shared,
    supervised: &BTreeSet<SandboxId>,
) -> Result<Vec<SandboxId>, Error> {
    let mut volumes = shared.storage.list().await?;
    let mut others = shared.codebases.volumes();
    others.extend(cache_volumes(shared).await?);
    volumes.retain(|id| !supervised.contains(id) && !others.contains(id));
    Ok(volumes)
}

/// A sandbox claimed by reconcile; released unless a supervisor takes it over.
struct ClaimedSandbox {
    shared: Arc<Shared>,
    id: SandboxId,
    held: bool,
}

impl Drop for ClaimedSandbox {
    fn drop(&mut self) {
        if self.held {
            self.shared.release(&self.id);
        }
    }
}

/// Every sandbox in this node's registry or homes that has no supervisor.
async fn claim(shared: &Arc<Shared>) -> Result<Vec<ClaimedSandbox>, Error> {
    let (rows, homes) = tokio::join!(shared.registry.rows(), shared.blocking(|data| data.homes()));
    let mut ids: BTreeSet<SandboxId> = homes?.into_iter().collect();
    let here = rows?.into_iter().filter(|(_, row)| !row.is_elsewhere());
    ids.extend(here.map(|(id, _)| id));
    let claims = ids.into_iter().filter(|id| shared.claim(id));
    Ok(claims.map(|id| ClaimedSandbox { shared: Arc::clone(shared), id, held: true }).collect())
}

/// Restores damaged metadata from the row. This happens before the runtimes are asked, because without metadata a
/// runtime cannot identify the owner of a sandbox.
async fn mend(claim: &ClaimedSandbox, row: Option<&Row>) {
    let Some(Row { record: Ok(record), .. }) = row else { return };
    let (record, home) = (record.clone(), claim.shared.data.home(&claim.id));
    let mended = claim.shared.blocking(move |_| match judge::mended(&record, &home.read()) {
        Some(meta) => home.write(&meta).and_then(|()| home.sync()).map(|()| true),
        None => Ok(false),
    });
    match mended.await {
        Ok(true) => warn!(id = %claim.id, "wrote damaged metadata anew from the registry"),
        Ok(false) => {}
        Err(error) => warn!(id = %claim.id, %error, "cannot write damaged metadata anew"),
    }
}

/// What the runtimes report.
struct RuntimeReports {
    alive: HashMap<SandboxId, Liveness>,
    /// Runtimes that cannot answer now, such as an unreachable engine: whether their sandboxes run is unknown, which is
    /// not the same as not running.
    silent: BTreeSet<&'static str>,
}

/// A runtime that is unusable here runs nothing here.
async fn listen(shared: &Shared) -> RuntimeReports {
    let mut heard = RuntimeReports { alive: HashMap::new(), silent: BTreeSet::new() };
    for runtime in shared.runtimes.iter().filter(|runtime| runtime.usable() == Usable::Yes) {
        let found = match runtime.list().await {
            Ok(found) => found,
            Err(error) => {
                error!(runtime = runtime.name(), %error, "cannot list sandboxes; they are left alone");
                heard.silent.insert(runtime.name());
                continue;
            }
        };
        heard.alive.extend(found.into_iter().map(|found| {
            let liveness = if found.running { Liveness::Running } else { Liveness::NotRunning };
            (found.id, liveness)
        }));
    }
    heard
}

/// What earlier daemons left of all sandboxes, besides rows and homes.
struct Traces {
    in_storage: InStorage,
    in_log: Revisited,
}

impl Traces {
    async fn look(shared: &Arc<Shared>) -> Result<Self, Error> {
        timeline::catch_up(shared).await?;
        let events = Arc::clone(&shared.events);
        let in_log = shared.blocking(move |_| events.revisit()).await?;
        Ok(Self { in_storage: InStorage::look(shared).await, in_log })
    }
}

/// Judges one sandbox and acts. An error is logged and does not affect other sandboxes.
async fn settle(
    claim: ClaimedSandbox,
    row: Option<Row>,
    liveness: Option<Liveness>,
    silent: &BTreeSet<&'static str>,
    traces: &Traces,
) {
    let (shared, id) = (Arc::clone(&claim.shared), claim.id.clone());
    let home = shared.data.home(&id);
    let look = home.clone();
    let state = match shared.blocking(move |_| Ok(look.read())).await {
        Ok(state) => state,
        Err(error) => return warn!(%id, %error, "cannot look at a home"),
    };
    let evidence = Evidence { row, home: state, liveness };
    match judge(evidence, shared.data.boot_id()) {
        Verdict::Nothing => {}
        Verdict::Leave { why } => warn!(%id, why, "a sandbox is left alone"),
        Verdict::RemoveHome => match shared.blocking(move |_| home.remove()).await {
            Ok(()) => info!(%id, "removed the home of a create that never began"),
            Err(error) => warn!(%id, %error, "cannot remove a home"),
        },
        Verdict::Quarantine { why } => {
            match shared.blocking(move |data| data.quarantine(&home)).await {
                Ok(aside) => {
                    let aside = aside.display().to_string();
                    warn!(%id, why, aside, "put aside a home that cannot be read");
                }
                Err(error) => warn!(%id, why, %error, "cannot put a home aside"),
            }
        }
        Verdict::Supervise(case) if silent.contains(case.meta.spec.runtime()) => {
            warn!(%id, runtime = case.meta.spec.runtime(), "a sandbox waits for its runtime");
        }
        Verdict::Supervise(case) => supervise(claim, *case, traces).await,
    }
}

async fn supervise(mut claim: ClaimedSandbox, case: Case, traces: &Traces) {
    let shared = Arc::clone(&claim.shared);
    let (runtime, shown) = match shared.usable_runtime(case.meta.spec.runtime()) {
        Ok(runtime) => (Arc::clone(runtime), None),
        Err(error) => {
            warn!(id = %claim.id, %error, "a sandbox cannot be reached");
            // It may become available later; then start leads out.
            let runtime = shared.runtime(case.meta.spec.runtime()).map(Arc::clone);
            let runtime = runtime.unwrap_or_else(|_| MissingRuntime::listed("none", &error));
            (runtime, case.without_runtime())
        }
    };
    let unreachable = shown.is_some();
    let Case { meta, status: recorded, revision, trigger, copy } = case;
    let status = shown.unwrap_or_else(|| recorded.clone());
    let (mut supervisor, handle) = Supervisor::new(&shared, runtime, meta, status, revision);
    rejoin::load(&shared, &handle.execs, &traces.in_log).await;
    if let Err(error) = supervisor.restore_snapshots(&traces.in_storage).await {
        // Continuing without them could lose snapshots, so reconcile retries later.
        return warn!(id = %claim.id, %error, "cannot read what is recorded of a sandbox's snapshots");
    }
    let home = supervisor.home.clone();
    if let Ok(Some(noted)) = shared.blocking(move |_| Ok(home.noted_activity())).await {
        handle.activity.restore(noted);
    }
    supervisor.restore_told(&recorded, &traces.in_log).await;
    if !unreachable {
        match supervisor.recover(trigger, &handle).await {
            Ok(Fate::Gone) => return,
            Ok(Fate::Lives) => {}
            // Its state says so, and destroy leads out.
            Err(error) => warn!(id = %claim.id, %error, "cannot recover a sandbox"),
        }
    }
    if copy == Copy::Stale {
        supervisor.copy_records().await;
    }
    if revision.is_none() {
        supervisor.reclaim_slot(&recorded).await;
        supervisor.reclaim_name().await;
    }
    if !unreachable {
        supervisor.settle_rename().await;
    }
    shared.supervise(handle);
    claim.held = false;
    shared.tasks.spawn_apart(supervisor.run());
}
