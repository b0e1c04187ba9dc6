//! Connections that wait for the owner's decision (`on_deny: ask`).
//!
//! All connections to one host and port wait for the same request. Nobody inside can decide it; a program can only say
//! why it asks. Requests are bounded in number and rate, and each ends when its time is over.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use sandkeep_core::limits::{
    EGRESS_ASK_REFUSED, EGRESS_ASK_WAITING_MAX, EGRESS_ASKS_MAX, EGRESS_ASKS_PER_MINUTE,
    EGRESS_MINUTE, EGRESS_WHY_MAX_BYTES, NETWORK_ENTRIES_MAX,
};
use sandkeep_core::network::{
    Choice, DEFAULT_PORTS, Entry, IpRange, OnDeny, PendingRequest, Target, host_name,
};

use crate::policy::{Finding, Host};
use crate::rate::Rate;
use crate::sandbox::{Sandbox, lock};

/// Why nothing can be asked, or decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("the policy of this sandbox does not ask: its on_deny is not \"ask\"")]
    DoesNotAsk,
    #[error("{0:?} is not a host name or an address")]
    NotAHost(String),
    #[error("{0} is allowed already")]
    Allowed(String),
    #[error("{host} is refused by {rule}; nobody can allow it by a request")]
    Denied { host: String, rule: String },
    #[error("the owner refused {0} a moment ago")]
    Refused(String),
    #[error("too many requests wait for a decision, or were made within a minute; try again later")]
    TooMany,
    #[error("the policy has {NETWORK_ENTRIES_MAX} entries already, the maximum")]
    PolicyFull,
    #[error("there is no request {0}; it was decided, or nobody decided in time")]
    Unknown(u64),
}

pub(crate) struct Asks {
    next: u64,
    pending: BTreeMap<u64, Pending>,
    refused: HashMap<(Host, u16), Instant>,
    rate: Rate,
}

pub(crate) struct Pending {
    request: PendingRequest,
    to: (Host, u16),
    outcome: watch::Sender<Option<Outcome>>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Decided(Choice),
    /// Nobody decided in time.
    Expired,
}

impl Asks {
    pub(crate) fn new() -> Self {
        let rate = Rate::new(EGRESS_ASKS_PER_MINUTE, EGRESS_MINUTE, EGRESS_ASKS_PER_MINUTE);
        Self { next: 1, pending: BTreeMap::new(), refused: HashMap::new(), rate }
    }

    pub(crate) fn pending(&self) -> Vec<PendingRequest> {
        self.pending.values().map(|pending| pending.request.clone()).collect()
    }

    fn take(&mut self, id: u64, outcome: Outcome) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        if outcome == Outcome::Decided(Choice::Refuse) {
            self.refused.retain(|_, until| *until > Instant::now());
            // One of at most as many as may be asked in that time.
            self.refused.insert(pending.to.clone(), Instant::now() + EGRESS_ASK_REFUSED);
        }
        pending.outcome.send_replace(Some(outcome));
        Some(pending)
    }

    fn was_refused(&self, to: &(Host, u16)) -> bool {
        self.refused.get(to).is_some_and(|until| *until > Instant::now())
    }
}

/// Waits until the owner decides about a connection, or the time is over.
pub(crate) async fn wait(
    sandbox: &Arc<Sandbox>,
    host: &Host,
    port: u16,
) -> Result<Outcome, AskError> {
    let id = find_or_ask(sandbox, host, port, None)?.id;
    let mut outcome = {
        let mut asks = lock(&sandbox.asks);
        let pending = asks.pending.get_mut(&id).ok_or(AskError::Unknown(id))?;
        if pending.request.waiting >= EGRESS_ASK_WAITING_MAX {
            return Err(AskError::TooMany);
        }
        pending.request.waiting += 1;
        pending.outcome.subscribe()
    };
    let _waiting = Waiting { sandbox, id };
    // The sender is dropped only after it sent, or with the sandbox.
    let outcome = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| *outcome);
    Ok(outcome.unwrap_or(Outcome::Expired))
}

struct Waiting<'a> {
    sandbox: &'a Sandbox,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(pending) = lock(&self.sandbox.asks).pending.get_mut(&self.id) {
            pending.request.waiting -= 1;
        }
    }
}

/// Asks before a connection does, and gives a reason.
pub(crate) fn request(
    sandbox: &Arc<Sandbox>,
    host: &str,
    port: u16,
    why: &str,
) -> Result<PendingRequest, AskError> {
    let shown: String = host.chars().take(EGRESS_WHY_MAX_BYTES).collect();
    let host = match host.trim_matches(['[', ']']).parse() {
        Ok(address) => Host::Address(std::net::IpAddr::to_canonical(&address)),
        Err(_) => host_name(host).map(Host::Name).map_err(|_| AskError::NotAHost(shown))?,
    };
    let rules = sandbox.rules();
    match rules.find(&host, port) {
        Finding::Allowed(_) => return Err(AskError::Allowed(host.to_string())),
        Finding::Denied { rule, .. } => {
            return Err(AskError::Denied { host: host.to_string(), rule });
        }
        Finding::Unlisted if rules.on_deny == OnDeny::Ask => {}
        Finding::Unlisted => return Err(AskError::DoesNotAsk),
    }
    let why = why.chars().filter(|c| !c.is_control());
    let why: String = why.take(EGRESS_WHY_MAX_BYTES).collect();
    find_or_ask(sandbox, &host, port, Some(why).filter(|why| !why.is_empty()))
}

fn find_or_ask(
    sandbox: &Arc<Sandbox>,
    host: &Host,
    port: u16,
    why: Option<String>,
) -> Result<PendingRequest, AskError> {
    let to = (host.clone(), port);
    let mut asks = lock(&sandbox.asks);
    if let Some(pending) = asks.pending.values_mut().find(|pending| pending.to == to) {
        pending.request.why = why.or(pending.request.why.take());
        return Ok(pending.request.clone());
    }
    if asks.was_refused(&to) {
        return Err(AskError::Refused(host.to_string()));
    }
    if asks.pending.len() >= EGRESS_ASKS_MAX || !asks.rate.take() {
        return Err(AskError::TooMany);
    }
    let (id, wait, now) = (asks.next, sandbox.times().ask, Timestamp::now());
    asks.next += 1;
    let request = PendingRequest {
        id,
        host: host.to_string(),
        port,
        why,
        asked_at: now,
        expires_at: now.checked_add(wait).unwrap_or(Timestamp::MAX),
        waiting: 0,
    };
    let outcome = watch::Sender::new(None);
    asks.pending.insert(id, Pending { request: request.clone(), to, outcome });
    drop(asks);
    tokio::spawn(expire(Arc::clone(sandbox), id, wait));
    sandbox.recorder().asked(&request);
    Ok(request)
}

async fn expire(sandbox: Arc<Sandbox>, id: u64, wait: Duration) {
    tokio::select! {
        () = sleep(wait) => {}
        () = sandbox.stop.cancelled() => {}
    }
    lock(&sandbox.asks).take(id, Outcome::Expired);
}

/// Decides a request. After `Always` its entry is in force.
pub(crate) fn decide(
    sandbox: &Sandbox,
    id: u64,
    choice: Choice,
) -> Result<Option<Entry>, AskError> {
    let entry = match choice {
        Choice::Once | Choice::Refuse => None,
        Choice::Always => {
            let asks = lock(&sandbox.asks);
            let pending = asks.pending.get(&id).ok_or(AskError::Unknown(id))?;
            Some(entry_for(&pending.to.0, pending.to.1))
        }
    };
    if let Some(entry) = &entry {
        sandbox.change(|rules| {
            if rules.policy.allow.len() >= NETWORK_ENTRIES_MAX {
                return Err(AskError::PolicyFull);
            }
            rules.policy.allow.push(entry.clone());
            Ok(())
        })?;
    }
    let mut asks = lock(&sandbox.asks);
    asks.take(id, Outcome::Decided(choice)).ok_or(AskError::Unknown(id))?;
    Ok(entry)
}

/// The entry that allows this destination.
pub(crate) fn entry_for(host: &Host, port: u16) -> Entry {
    let port = Some(port).filter(|port| !DEFAULT_PORTS.contains(port));
    Entry::of(match host {
        Host::Name(name) => Target::Name { host: name.clone(), port },
        Host::Address(address) => Target::Range { range: IpRange::of(*address), port },
    })
}
