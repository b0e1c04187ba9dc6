//! The network of one sandbox while its supervisor lives: the gateway's end, and what is told of its decisions.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, mpsc};

use super::log::Line;
use crate::clock::Clock;
use crate::error::Error;
use crate::shared::Shared;
use crate::telemetry::NetworkMetrics;
use sandkeep_core::api::GatewayState;
use sandkeep_core::event::{EventKind, Subject};
use sandkeep_core::network::{Decision, DecisionKind, NetworkVerdict, PendingRequest, Policy};
use sandkeep_core::{SandboxId, limits};
use sandkeep_egress::{Attachment, Recorder};
use sandkeep_home::network_log;

/// What becomes of the sandbox's connections.
#[derive(Default)]
enum Way {
    #[default]
    Closed,
    Open(Arc<Attachment>, Arc<SandboxRecorder>),
    /// Why it could not be opened.
    Failed(String),
}

#[derive(Default)]
pub(crate) struct NetworkRoom {
    way: Mutex<Way>,
    /// Exists from the first follower on.
    live: OnceLock<broadcast::Sender<Arc<Decision>>>,
    used: Mutex<Used>,
}

/// What was used of `limits.bytes_total`.
#[derive(Default)]
struct Used {
    /// If there was such a limit since this daemon has the sandbox. The note of it on disk is older.
    bytes: Option<u64>,
    /// The present end counts what was used before it.
    counts_earlier: bool,
}

impl NetworkRoom {
    /// The lock is held for a look or one change, and nothing panics meanwhile.
    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gateway's end, while the sandbox has one.
    pub fn attachment(&self) -> Option<Arc<Attachment>> {
        match &*self.way() {
            Way::Open(attachment, _) => Some(Arc::clone(attachment)),
            Way::Closed | Way::Failed(_) => None,
        }
    }

    pub fn state(&self) -> (GatewayState, Option<String>) {
        match &*self.way() {
            Way::Closed => (GatewayState::Closed, None),
            Way::Open(..) => (GatewayState::Open, None),
            Way::Failed(reason) => (GatewayState::Failed, Some(reason.clone())),
        }
    }

    pub(super) fn open(&self, attachment: Attachment, recorder: Arc<SandboxRecorder>) {
        self.put(Way::Open(Arc::new(attachment), recorder));
    }

    pub(super) fn fail(&self, reason: String) {
        self.put(Way::Failed(reason));
    }

    /// Ends all connections, and refuses further ones.
    pub fn close(&self) {
        self.put(Way::Closed);
    }

    /// What was used of `limits.bytes_total` before an end with this policy is opened; `None` if it has no such limit.
    pub async fn earlier_bytes(
        &self,
        shared: &Arc<Shared>,
        policy: &Policy,
        id: &SandboxId,
    ) -> Result<Option<u64>, Error> {
        if !shared.network.counts_bytes(policy) {
            return Ok(None);
        }
        let known = self.used().bytes;
        if known.is_some() {
            return Ok(known);
        }
        let home = shared.data.home(id).path().to_owned();
        shared.blocking(move |_| network_log::used_bytes(&home)).await.map(Some)
    }

    /// Whether the present end counts what was used before it.
    pub fn counts_earlier(&self) -> bool {
        self.used().counts_earlier
    }

    /// Has it count that.
    pub fn count_earlier(&self, attachment: &Attachment, bytes: u64) {
        attachment.add_earlier_bytes(bytes);
        *self.used() = Used { bytes: Some(bytes), counts_earlier: true };
    }

    /// The lock is held for a look or one change, and nothing panics meanwhile.
    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The former end is dropped without the lock: that may take a while.
    fn put(&self, way: Way) {
        if !matches!(way, Way::Open(..)) {
            self.used().counts_earlier = false;
        }
        let former = std::mem::replace(&mut *self.way(), way);
        if let Way::Open(attachment, recorder) = former {
            recorder.keep_used(&attachment);
        }
    }

    /// Decisions from now on. It ends when the sandbox has no supervisor any more.
    pub fn follow(&self) -> broadcast::Receiver<Arc<Decision>> {
        let begin = || broadcast::Sender::new(limits::NETWORK_LOG_LAG_MAX);
        self.live.get_or_init(begin).subscribe()
    }
}

/// Takes down what the gateway decides about one sandbox.
pub(super) struct SandboxRecorder {
    pub room: Arc<NetworkRoom>,
    pub home: PathBuf,
    /// `None`: its events are not told.
    pub subject: Option<Subject>,
    pub lines: mpsc::Sender<Line>,
    pub clock: Arc<dyn Clock>,
    pub metrics: NetworkMetrics,
    pub told: Mutex<RecentEvents>,
}

impl SandboxRecorder {
    pub fn of(
        shared: &Shared,
        room: &Arc<NetworkRoom>,
        home: PathBuf,
        subject: Option<Subject>,
    ) -> Self {
        Self {
            room: Arc::clone(room),
            home,
            subject,
            lines: shared.network.lines(),
            clock: Arc::clone(&shared.clock),
            metrics: shared.telemetry.network().clone(),
            told: Mutex::default(),
        }
    }

    /// Notes what counts to `limits.bytes_total`, for the next start and for the next daemon.
    fn keep_used(&self, attachment: &Attachment) {
        if let Some(bytes) = attachment.counted_bytes() {
            self.room.used().bytes = Some(bytes);
            self.queue(Line::Used { home: self.home.clone(), bytes });
        }
    }

    fn queue(&self, line: Line) {
        if self.lines.try_send(line).is_err() {
            self.metrics.lost.inc();
        }
    }

    fn tell(&self, kind: EventKind) {
        if let Some(subject) = self.subject.clone() {
            self.queue(Line::Told { subject, kind });
        }
    }
}

impl Recorder for SandboxRecorder {
    fn record(&self, decision: &Decision) {
        self.metrics.count(decision);
        if let Some(live) = self.room.live.get() {
            // Nobody may follow any more.
            let _ = live.send(Arc::new(decision.clone()));
        }
        if decision.verdict == NetworkVerdict::Denied {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let kind = told.denied(decision, self.clock.uptime());
            drop(told);
            kind.into_iter().for_each(|kind| self.tell(kind));
        }
        if let (DecisionKind::Closed, Some(attachment)) = (decision.kind, self.room.attachment()) {
            self.keep_used(&attachment);
        }
        self.queue(Line::Decided { home: self.home.clone(), decision: decision.clone() });
    }

    fn asked(&self, request: &PendingRequest) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let may = told.may_request(self.clock.uptime());
        drop(told);
        if may {
            let PendingRequest { id, host, port, why, .. } = request.clone();
            self.tell(EventKind::NetworkRequested { request: id, host, port, reason: why });
        }
    }
}

/// What was told lately, so that a program that tries again and again does not push all other events out of the log.
#[derive(Default)]
pub(super) struct RecentEvents {
    denied: HashMap<(String, Option<u16>), RecentDenial>,
    /// In this minute since boot, so many requests were told.
    requested: (u64, u32),
}

struct RecentDenial {
    at: Duration,
    untold: u64,
}

/// Stands for destinations that are not told apart.
const OTHERS: &str = "*";

impl RecentEvents {
    /// The event to tell now, if any.
    fn denied(&mut self, decision: &Decision, now: Duration) -> Option<EventKind> {
        let host = decision.name.clone().or_else(|| decision.address.map(|ip| ip.to_string()));
        let mut key = (host.unwrap_or_default(), decision.port);
        let is_recent = |recent: &RecentDenial| {
            now.saturating_sub(recent.at) < limits::NETWORK_DENIED_TOLD_EVERY
        };
        if !self.denied.contains_key(&key) && self.denied.len() >= limits::NETWORK_DENIED_TOLD_MAX {
            self.denied.retain(|(host, _), recent| host == OTHERS || is_recent(recent));
            if self.denied.len() >= limits::NETWORK_DENIED_TOLD_MAX {
                key = (OTHERS.to_owned(), None);
            }
        }
        if let Some(recent) = self.denied.get_mut(&key).filter(|recent| is_recent(recent)) {
            recent.untold += 1;
            return None;
        }
        let before = self.denied.insert(key.clone(), RecentDenial { at: now, untold: 0 });
        let count = 1 + before.map_or(0, |before| before.untold);
        let reason = decision.reason.clone().or_else(|| decision.rule.clone()).unwrap_or_default();
        Some(EventKind::NetworkDenied { host: key.0, port: key.1, reason, count })
    }

    fn may_request(&mut self, now: Duration) -> bool {
        let minute = now.as_secs() / 60;
        if self.requested.0 != minute {
            self.requested = (minute, 0);
        }
        self.requested.1 += 1;
        self.requested.1 <= limits::NETWORK_REQUESTED_TOLD_PER_MINUTE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(host: &str) -> Decision {
        Decision {
            at: jiff::Timestamp::UNIX_EPOCH,
            kind: DecisionKind::Connection,
            verdict: NetworkVerdict::Denied,
            connection: None,
            name: Some(host.to_owned()),
            address: None,
            port: Some(443),
            rule: None,
            reason: Some("no entry allows it".to_owned()),
            method: None,
            path: None,
            bytes_up: None,
            bytes_down: None,
            duration_ms: None,
        }
    }

    fn count(kind: Option<EventKind>) -> Option<(String, u64)> {
        match kind {
            Some(EventKind::NetworkDenied { host, count, .. }) => Some((host, count)),
            Some(other) => panic!("{other:?}"),
            None => None,
        }
    }

    #[test]
    fn a_flood_of_refusals_is_few_events_and_all_are_counted() {
        let mut told = RecentEvents::default();
        let mut at =
            |secs, host: &str| count(told.denied(&denied(host), Duration::from_secs(secs)));
        assert_eq!(at(100, "a.example"), Some(("a.example".to_owned(), 1)));
        for _ in 0..1000 {
            assert_eq!(at(101, "a.example"), None);
        }
        assert_eq!(at(161, "a.example"), Some(("a.example".to_owned(), 1001)));
        let events = (0..10_000).filter_map(|n| at(162, &format!("{n}.example"))).count();
        assert!(events <= limits::NETWORK_DENIED_TOLD_MAX + 1, "{events}");
        assert!(at(162, "z.example").is_none());
    }

    #[test]
    fn a_flood_of_requests_is_a_bounded_number_of_events() {
        let mut told = RecentEvents::default();
        let mut in_minute = |minute: u64| {
            (0..1000).filter(|_| told.may_request(Duration::from_secs(60 * minute))).count()
        };
        let most = limits::NETWORK_REQUESTED_TOLD_PER_MINUTE as usize;
        assert_eq!((in_minute(1), in_minute(1), in_minute(2)), (most, 0, most));
    }
}
