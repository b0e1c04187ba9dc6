//! Health and readiness. Machines ask often, so the answer never waits for a disk.
//!
//! Parts that can hang (the pool, the store) are checked by a task, at most one at a time, and its last result is valid
//! for [`limits::HEALTH_FRESH`]. A check that takes longer than [`limits::HEALTH_ANSWER`] is itself the finding.
//! Everything else is read from memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;

use super::policy::PoolMarks;
use super::shared::Shared;
use crate::error::Error;
use crate::telemetry::Reading;
use sandkeep_core::ledger::Over;
use sandkeep_core::{State, limits, with_causes};
use sandkeep_runtime::Usable;
use sandkeep_storage::PoolHealth;

/// Whether requests should be sent to this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Readiness {
    /// Requests will be served.
    Ready,
    /// Send requests elsewhere, or wait; `errors` says why.
    NotReady,
}

/// State of the storage pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolState {
    Ok,
    /// Fuller than `limits.pool_warning`, with less than 16 GiB free.
    Warning,
    /// Fuller than `limits.pool_critical`, with less than 1 GiB free: the daemon is not ready, and creates no sandboxes
    /// or snapshots.
    Critical,
    /// It did not answer.
    Unusable,
}

/// The space for volumes. In a pool that grows on demand, the space by which it can still grow counts as free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Pool {
    /// The name of the storage: `btrfs` or `local`.
    #[schema(example = "btrfs")]
    pub storage: &'static str,
    pub state: PoolState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

/// Number of sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SandboxCount {
    pub total: usize,
    /// Number of sandboxes per state; every state is listed.
    #[schema(value_type = BTreeMap<String, usize>)]
    pub by_state: BTreeMap<&'static str, usize>,
}

/// A service outside that the daemon uses and can do without: it does not count for `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ServiceHealth {
    #[schema(example = "nats")]
    pub name: &'static str,
    pub connected: bool,
    /// Events that are recorded and have not arrived there yet.
    pub behind: u64,
    /// Why it does not work at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Knows how a service outside is. Asked often, so it answers from memory.
pub trait Service: Send + Sync {
    fn health(&self) -> ServiceHealth;
}

/// The state of the daemon, for its operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Health {
    pub status: Readiness,
    pub version: &'static str,
    pub uptime_secs: u64,
    pub pool: Pool,
    pub sandboxes: SandboxCount,
    /// Commands running now, in all sandboxes.
    pub active_execs: usize,
    /// Services outside that are configured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceHealth>,
    /// Problems in words; empty if there are none.
    pub errors: Vec<String>,
}

/// The result of checking the parts that can hang.
#[derive(Clone)]
struct Finding {
    pool: Result<PoolHealth, Arc<Error>>,
    store: Result<(), Arc<Error>>,
    at: Instant,
}

/// The last result, and whether a check is in progress.
pub(super) struct Pulse {
    last: watch::Sender<Option<Finding>>,
    looking: AtomicBool,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { last: watch::Sender::new(None), looking: AtomicBool::new(false) }
    }
}

/// Marks the check as finished, however it ended.
struct Look(Arc<Shared>);

impl Drop for Look {
    fn drop(&mut self) {
        self.0.pulse.looking.store(false, Ordering::Release);
    }
}

pub(super) async fn health(shared: &Arc<Shared>) -> Health {
    let finding = finding(shared).await;
    let mut errors = Vec::new();
    let mut status = Readiness::Ready;
    let mut fails = |problem: String| {
        status = Readiness::NotReady;
        errors.push(problem);
    };
    if shared.detaching.is_cancelled() || shared.closing.is_cancelled() {
        fails(Error::ShuttingDown.to_string());
    }
    if !shared.runtimes.iter().any(|runtime| shared.offers(runtime.as_ref()) == Usable::Yes) {
        fails("no runtime can be used here".to_owned());
    }
    match &finding {
        None => {
            let limit = limits::HEALTH_ANSWER.as_secs();
            fails(format!("the storage or the state store did not answer within {limit} s"));
        }
        Some(finding) => {
            if let Err(error) = &finding.store {
                fails(with_causes(error.as_ref()));
            }
            if let Err(error) = &finding.pool {
                fails(with_causes(error.as_ref()));
            }
        }
    }
    let pool = pool(shared, finding.as_ref().and_then(|finding| finding.pool.as_ref().ok()));
    if pool.state == PoolState::Critical {
        fails(pool_full(shared).to_string());
    }
    Health {
        status,
        version: env!("CARGO_PKG_VERSION"),
        uptime_secs: shared.telemetry.uptime().as_secs(),
        pool,
        sandboxes: count(shared),
        active_execs: active_execs(shared),
        services: shared.services().iter().map(|service| service.health()).collect(),
        errors,
    }
}

/// Refuses requests that need space if hardly any is left: the rest must suffice for the running sandboxes.
pub(super) async fn refuse_when_full(shared: &Arc<Shared>) -> Result<(), Error> {
    // If the pool had room, it is checked concurrently with the request and not before it.
    if known_state(shared) == Some(PoolState::Ok) {
        refresh(shared);
        return Ok(());
    }
    // A pool that does not answer will fail when it is used.
    let Some(finding) = finding(shared).await else { return Ok(()) };
    match pool(shared, finding.pool.as_ref().ok()).state {
        PoolState::Critical if is_full(shared).await => Err(pool_full(shared)),
        PoolState::Critical | PoolState::Ok | PoolState::Warning | PoolState::Unusable => Ok(()),
    }
}

/// Whether a pool is full also when all that was removed is free again.
async fn is_full(shared: &Arc<Shared>) -> bool {
    if let Err(error) = shared.storage.reclaim().await {
        tracing::debug!(%error, "cannot free what was removed");
    }
    let look = shared.storage.pool_health();
    // One that does not answer says so when it is used.
    let Ok(Ok(found)) = tokio::time::timeout(limits::HEALTH_ANSWER, look).await else {
        return false;
    };
    pool(shared, Some(&found)).state == PoolState::Critical
}

fn pool_full(shared: &Shared) -> Error {
    let storage = shared.storage.name();
    Error::PoolFull { storage, percent: shared.policy.pool.critical * 100.0 }
}

/// Checks the pool on behalf of a caller that is filling it; `left` corrects the free space for data that is not
/// counted yet. Returns why writing must stop, if it must. Blocks.
pub(super) fn over_critical_mark(shared: &Shared, left: impl Fn(u64) -> u64) -> Option<Over> {
    let look = tokio::time::timeout(limits::HEALTH_ANSWER, shared.storage.pool_health());
    // A pool that does not answer will fail when it is used.
    let mut found = tokio::runtime::Handle::current().block_on(look).ok()?.ok()?;
    found.free_bytes = left(found.free_bytes);
    let percent = (shared.policy.pool.critical * 100.0) as u64;
    match pool(shared, Some(&found)).state {
        PoolState::Critical => Some(Over::Pool { storage: shared.storage.name(), percent }),
        PoolState::Ok | PoolState::Warning | PoolState::Unusable => None,
    }
}

/// The same for the gauges of `/metrics`.
pub(super) async fn reading(shared: &Arc<Shared>) -> Reading {
    let health = health(shared).await;
    let mut counts: BTreeMap<(&'static str, &'static str), usize> = BTreeMap::new();
    for runtime in &shared.runtimes {
        counts.extend(State::ALL.map(|state| ((runtime.name(), state.as_str()), 0)));
    }
    for handle in shared.handles() {
        let state = handle.published.borrow().status.state();
        let runtime = shared.runtime_label(Some(handle.meta().spec.runtime()));
        *counts.entry((runtime, state.as_str())).or_default() += 1;
    }
    let sandboxes = counts.into_iter().map(|((runtime, state), n)| (runtime, state, n)).collect();
    Reading {
        sandboxes,
        execs_active: health.active_execs,
        pool_bytes: health.pool.total_bytes.zip(health.pool.used_bytes),
        ready: health.status == Readiness::Ready,
    }
}

/// The pool's state in the last result.
fn known_state(shared: &Shared) -> Option<PoolState> {
    let last = shared.pulse.last.borrow();
    let found = last.as_ref()?.pool.as_ref().ok();
    Some(pool(shared, found).state)
}

/// Starts a check, unless the last result is fresh or a check is in progress.
pub(super) fn refresh(shared: &Arc<Shared>) {
    if !fresh(&shared.pulse.last.borrow()) && !shared.pulse.looking.swap(true, Ordering::AcqRel) {
        shared.tasks.spawn(look(Look(Arc::clone(shared))));
    }
}

/// The first check, before any request.
pub(super) async fn begin(shared: &Arc<Shared>) {
    let _ = finding(shared).await;
}

fn fresh(finding: &Option<Finding>) -> bool {
    finding.as_ref().is_some_and(|finding| finding.at.elapsed() < limits::HEALTH_FRESH)
}

/// A result that is fresh enough; `None` if there is none in time.
async fn finding(shared: &Arc<Shared>) -> Option<Finding> {
    let mut last = shared.pulse.last.subscribe();
    refresh(shared);
    let found = tokio::time::timeout(limits::HEALTH_ANSWER, last.wait_for(fresh)).await;
    found.ok()?.ok()?.clone()
}

async fn look(look: Look) {
    let shared = &look.0;
    let pool = async { shared.storage.pool_health().await.map_err(|e| Arc::new(e.into())) };
    let store = async { shared.store.probe().await.map_err(|e| Arc::new(e.into())) };
    let (pool, store) = tokio::select! {
        // A check that hangs must not keep the broker from shutting down.
        () = shared.closing.cancelled() => return,
        both = async { tokio::join!(pool, store) } => both,
    };
    shared.pulse.last.send_replace(Some(Finding { pool, store, at: Instant::now() }));
}

fn pool(shared: &Shared, found: Option<&PoolHealth>) -> Pool {
    let storage = shared.storage.name();
    let Some(PoolHealth { total_bytes, free_bytes }) = found.copied() else {
        let state = PoolState::Unusable;
        return Pool { storage, state, total_bytes: None, used_bytes: None, free_bytes: None };
    };
    let used_bytes = total_bytes.saturating_sub(free_bytes);
    let state = pool_state(used_bytes, total_bytes, &shared.policy.pool);
    Pool {
        storage,
        state,
        total_bytes: Some(total_bytes),
        used_bytes: Some(used_bytes),
        free_bytes: Some(free_bytes),
    }
}

fn pool_state(used_bytes: u64, total_bytes: u64, marks: &PoolMarks) -> PoolState {
    // A ratio needs no more precision than a float has.
    let over = |mark: f64, enough_bytes: u64| {
        let free_bytes = total_bytes.saturating_sub(used_bytes);
        used_bytes as f64 > total_bytes as f64 * mark && free_bytes < enough_bytes
    };
    let warning = over(marks.warning, limits::POOL_WARNING_FREE_BYTES);
    match (warning, over(marks.critical, limits::POOL_CRITICAL_FREE_BYTES)) {
        (_, true) => PoolState::Critical,
        (true, false) => PoolState::Warning,
        (false, false) => PoolState::Ok,
    }
}

fn count(shared: &Shared) -> SandboxCount {
    let mut by_state: BTreeMap<_, _> = State::ALL.map(|state| (state.as_str(), 0)).into();
    for handle in shared.handles() {
        let state = handle.published.borrow().status.state();
        *by_state.entry(state.as_str()).or_default() += 1;
    }
    SandboxCount { total: by_state.values().sum(), by_state }
}

fn active_execs(shared: &Shared) -> usize {
    shared.handles().iter().map(|handle| handle.activity.execs()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_critical_only_over_its_mark() {
        let marks = PoolMarks::default();
        let states = [0, 85, 86, 95, 96, 100].map(|used| pool_state(used, 100, &marks));
        use PoolState::{Critical, Ok, Warning};
        assert_eq!(states, [Ok, Ok, Warning, Warning, Critical, Critical]);
        assert_eq!(pool_state(u64::MAX, u64::MAX, &marks), Critical);
        assert_eq!(pool_state(0, 0, &marks), Ok);
    }

    #[test]
    fn a_large_disk_that_is_almost_full_but_has_room_is_not_critical() {
        const GIB: u64 = 1 << 30;
        let marks = PoolMarks::default();
        let states = [240, 235, 231].map(|used| pool_state(used * GIB, 250 * GIB, &marks));
        assert_eq!(states, [PoolState::Warning, PoolState::Warning, PoolState::Ok]);
        assert_eq!(pool_state(250 * GIB - GIB / 2, 250 * GIB, &marks), PoolState::Critical);
    }
}
