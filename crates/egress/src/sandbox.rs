//! What the gateway knows of one sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use sandkeep_core::SandboxId;
use sandkeep_core::limits::{
    EGRESS_CONNECTIONS_DEFAULT, EGRESS_LOOKUPS_MAX, EGRESS_QUERIES_BURST, EGRESS_QUERIES_PER_SEC,
    EGRESS_RECORDS_BURST, EGRESS_RECORDS_PER_SEC, EGRESS_SECOND, EGRESS_USED_MAX,
};
use sandkeep_core::network::{Decision, DecisionKind, NetworkUsage, NetworkVerdict, OnDeny};

use crate::ask::Asks;
use crate::gateway::{Recorder, Shared, Times};
use crate::meter::{Counts, Meter};
use crate::names::Names;
use crate::policy::{Compiled, Finding, Host, Reach};
use crate::rate::Rate;
use crate::rules::Rules;
use crate::tenant::Tenant;

pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) gateway: Arc<Shared>,
    tenant: Arc<Tenant>,
    recorder: Arc<dyn Recorder>,
    rules: RwLock<Arc<Compiled>>,
    /// As they were given, with what the owner always allows since.
    pub(crate) given: Mutex<Rules>,
    names: Mutex<Names>,
    pub(crate) asks: Mutex<Asks>,
    pub(crate) used: Mutex<BTreeSet<(Host, u16)>>,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) queries: Rate,
    records: Rate,
    lookups: Arc<Semaphore>,
    /// Everything of this sandbox ends.
    pub(crate) stop: CancellationToken,
    counts: Totals,
}

#[derive(Default)]
struct Totals {
    allowed: AtomicU64,
    refused: AtomicU64,
    queries: AtomicU64,
    queries_refused: AtomicU64,
}

/// An open connection.
pub(crate) struct Connection {
    pub(crate) number: u64,
    pub(crate) counts: Arc<Counts>,
    /// It ends, because a change of the rules or a limit ends it.
    pub(crate) cut: CancellationToken,
    /// Where it goes: nowhere yet, and for a connection to the proxy to one destination after the other.
    pub(crate) goes: Mutex<Option<Goes>>,
}

/// Where a connection goes, and why it may.
#[derive(Clone, Debug)]
pub(crate) struct Goes {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) basis: Basis,
    pub(crate) reach: Reach,
    /// Its requests are read.
    pub(crate) is_read: bool,
    /// What was dialed.
    pub(crate) peer: Option<SocketAddr>,
    /// What the log says of it at its end, if nothing ended it.
    pub(crate) remark: Option<&'static str>,
}

/// Why a connection may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    Listed,
    /// The owner allowed it once.
    Once,
    Audited,
}

/// What one line of the log says besides its time.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) kind: DecisionKind,
    pub(crate) verdict: NetworkVerdict,
    pub(crate) connection: Option<u64>,
    pub(crate) name: Option<String>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: Option<u16>,
    pub(crate) rule: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) request: Option<(String, String)>,
    pub(crate) ended: Option<(u64, u64, Duration)>,
}

impl Line {
    pub(crate) fn of(kind: DecisionKind, verdict: NetworkVerdict) -> Self {
        Self {
            kind,
            verdict,
            connection: None,
            name: None,
            address: None,
            port: None,
            rule: None,
            reason: None,
            request: None,
            ended: None,
        }
    }

    pub(crate) fn to(mut self, host: &Host, port: u16) -> Self {
        self.name = host.name().map(str::to_owned);
        self.address = host.address();
        self.port = Some(port);
        self
    }
}

/// The lock of a value that is complete at all times, so that a poisoned lock guards a valid one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sandbox {
    pub(crate) fn new(
        (id, tenant): (SandboxId, Arc<Tenant>),
        gateway: Arc<Shared>,
        rules: Rules,
        recorder: Arc<dyn Recorder>,
    ) -> Self {
        let second = EGRESS_SECOND;
        let sandbox = Self {
            id,
            rules: RwLock::new(Arc::new(gateway.compile(&rules))),
            gateway,
            tenant,
            recorder,
            given: Mutex::new(rules),
            names: Mutex::default(),
            asks: Mutex::new(Asks::new()),
            used: Mutex::default(),
            connections: Mutex::default(),
            meter: Arc::new(Meter::new()),
            queries: Rate::new(EGRESS_QUERIES_PER_SEC, second, EGRESS_QUERIES_BURST),
            records: Rate::new(EGRESS_RECORDS_PER_SEC, second, EGRESS_RECORDS_BURST),
            lookups: Arc::new(Semaphore::new(EGRESS_LOOKUPS_MAX)),
            stop: CancellationToken::new(),
            counts: Totals::default(),
        };
        sandbox.bound();
        sandbox
    }

    pub(crate) fn times(&self) -> Times {
        self.gateway.times
    }

    pub(crate) fn rules(&self) -> Arc<Compiled> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    /// Changes the rules in force, and cuts the connections that they no longer allow. Of two changes at the same time
    /// the second one sees the first.
    pub(crate) fn change<E>(
        &self,
        change: impl FnOnce(&mut Rules) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut given = lock(&self.given);
        let mut rules = given.clone();
        change(&mut rules)?;
        let compiled = Arc::new(self.gateway.compile(&rules));
        *given = rules;
        let before = {
            let mut current = self.rules.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::clone(&compiled))
        };
        self.bound();
        let open: Vec<_> = lock(&self.connections).values().cloned().collect();
        for connection in open {
            let goes = lock(&connection.goes).clone();
            if goes.is_some_and(|goes| !stays(&goes, &before, &compiled)) {
                connection.counts.reset_at_end();
                connection.cut.cancel();
            }
        }
        Ok(())
    }

    fn bound(&self) {
        let limits = self.rules().limits;
        self.meter.bound(limits.bytes_per_sec, limits.bytes_total);
    }

    /// One more connection, if there may be one: `None` if the sandbox, or all together, have too many.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<CountedConnection> {
        let max = self.rules().limits.connections.unwrap_or(EGRESS_CONNECTIONS_DEFAULT);
        let mut open = lock(&self.connections);
        let own = u64::try_from(open.len()).unwrap_or(u64::MAX);
        if own >= u64::from(max) || !self.gateway.take_connection(&self.tenant) {
            return None;
        }
        let connection = Arc::new(Connection {
            number: self.gateway.next_number(),
            counts: Arc::new(Counts::new()),
            cut: self.stop.child_token(),
            goes: Mutex::default(),
        });
        open.insert(connection.number, Arc::clone(&connection));
        drop(open);
        Some(CountedConnection { sandbox: Arc::clone(self), connection })
    }

    /// Waits for a turn to look a name up: of the sandbox, of its organization, and of all, in this order, so that
    /// nobody's queue is in the way of others. It lasts until it is dropped.
    pub(crate) async fn lookup_turn(&self) -> [OwnedSemaphorePermit; 3] {
        let turn = async |of: &Arc<Semaphore>| {
            Arc::clone(of).acquire_owned().await.expect("it is never closed")
        };
        let own = turn(&self.lookups).await;
        let tenant = turn(&self.tenant.lookups).await;
        [own, tenant, turn(&self.gateway.lookups).await]
    }

    pub(crate) fn cut_all(&self) {
        for connection in lock(&self.connections).values() {
            connection.counts.reset_at_end();
            connection.cut.cancel();
        }
    }

    pub(crate) fn count_query(&self, is_refused: bool) {
        self.counts.queries.fetch_add(1, Relaxed);
        self.counts.queries_refused.fetch_add(u64::from(is_refused), Relaxed);
    }

    /// Writes a line to the log, and counts what it says. Above the rate it is counted only.
    pub(crate) fn record(&self, line: Line) {
        match (line.kind, line.verdict) {
            (DecisionKind::Connection, NetworkVerdict::Allowed | NetworkVerdict::Audited) => {
                self.counts.allowed.fetch_add(1, Relaxed);
            }
            (DecisionKind::Connection | DecisionKind::Request, NetworkVerdict::Denied) => {
                self.counts.refused.fetch_add(1, Relaxed);
                self.gateway.count_refused();
            }
            _ => {}
        }
        if !self.records.take() {
            return;
        }
        let (method, path) = line.request.unzip();
        self.recorder.record(&Decision {
            at: Timestamp::now(),
            kind: line.kind,
            verdict: line.verdict,
            connection: line.connection,
            name: line.name,
            address: line.address,
            port: line.port,
            rule: line.rule,
            reason: line.reason,
            method,
            path,
            bytes_up: line.ended.map(|(up, _, _)| up),
            bytes_down: line.ended.map(|(_, down, _)| down),
            duration_ms: line
                .ended
                .map(|(.., age)| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        });
    }

    pub(crate) fn recorder(&self) -> &dyn Recorder {
        self.recorder.as_ref()
    }

    /// Remembers what was used, for a policy that covers it.
    pub(crate) fn used(&self, host: &Host, port: u16) {
        let mut used = lock(&self.used);
        if used.len() < EGRESS_USED_MAX {
            used.insert((host.clone(), port));
        }
    }

    pub(crate) fn usage(&self) -> NetworkUsage {
        let (bytes_up, bytes_down) = self.meter.bytes();
        let number = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        NetworkUsage {
            open: number(lock(&self.connections).len()),
            connections: self.counts.allowed.load(Relaxed),
            refused: self.counts.refused.load(Relaxed),
            bytes_up,
            bytes_down,
            queries: self.counts.queries.load(Relaxed),
            queries_refused: self.counts.queries_refused.load(Relaxed),
            pending: number(lock(&self.asks).pending().len()),
        }
    }
}

/// Whether an open connection may go on under other rules.
fn stays(goes: &Goes, before: &Compiled, now: &Compiled) -> bool {
    let address = goes.peer.map_or(Ok(()), |peer| now.may_dial(peer.ip(), goes.port, goes.reach));
    let may = match now.find(&goes.host, goes.port) {
        Finding::Denied { .. } => false,
        Finding::Unlisted => match now.on_deny {
            OnDeny::Refuse => false,
            OnDeny::Ask => goes.basis == Basis::Once,
            // Addresses that are not public need an entry.
            OnDeny::Audit => goes.reach == Reach::Public,
        },
        Finding::Allowed(allowed) => {
            // A request that is on its way may be one that the new rules refuse.
            let same = match before.find(&goes.host, goes.port) {
                Finding::Allowed(before) => before.requests == allowed.requests,
                Finding::Denied { .. } | Finding::Unlisted => allowed.requests.is_empty(),
            };
            same && (goes.is_read || !now.reads(&goes.host, goes.port))
        }
    };
    may && address.is_ok()
}

/// An open connection that counts until this is dropped.
pub(crate) struct CountedConnection {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) connection: Arc<Connection>,
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        lock(&self.sandbox.connections).remove(&self.connection.number);
        self.sandbox.gateway.give_connection(&self.sandbox.tenant);
    }
}
