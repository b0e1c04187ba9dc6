//! The reaper: ends sandboxes whose time is over, and notes down when the others were last used.
//!
//! Deadlines are not kept anywhere: they follow from the terms and from moments that are on disk (see
//! [`Moment`]), so a restarted daemon comes to the same ones, and a clock that is set changes none of
//! them. The reaper sleeps until the next deadline, at most for one interval, so that after a sleep of
//! the machine it is late by no more than that. It only asks: whether the time is really over is
//! decided by the sandbox's supervisor, after every keepalive that came before.
//!
//! [`Moment`]: sandkeep_core::Moment

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use super::activity::Activity;
use super::supervisor::{LifecycleVerb, Request, Snapshot};
use crate::shared::{Handle, Shared};
use sandkeep_core::{Expiry, Moment, OnTimeout, State, limits};

/// Wakes the reaper if a deadline comes before all that it knows of.
#[derive(Default)]
pub(crate) struct Alarm {
    /// When it wakes, in time since boot.
    next: Mutex<Duration>,
    earlier: Notify,
}

impl Alarm {
    /// There is a deadline at this time since boot.
    pub fn set(&self, at: Duration) {
        if at < *self.next.lock().unwrap_or_else(PoisonError::into_inner) {
            self.earlier.notify_one();
        }
    }

    /// From here on every deadline is news: it may come too late to be seen by the look that follows.
    fn looks(&self) {
        self.sleeps_until(Duration::MAX);
    }

    fn sleeps_until(&self, at: Duration) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

/// How long a sandbox still has, and which of its times ends first; `None` if none will.
pub(crate) fn time_left(
    activity: &Activity,
    snapshot: &Snapshot,
    now: &Moment,
) -> Option<(Duration, Expiry)> {
    let terms = &snapshot.terms;
    let (timeout_counts, idle_counts) = match (snapshot.status.state(), terms.on_timeout) {
        (State::Running, _) => (true, true),
        (State::Paused, OnTimeout::Destroy | OnTimeout::Stop)
        | (State::Stopped, OnTimeout::Destroy) => (true, false),
        // Nobody can use it any more, so it would stay for ever.
        (State::Failed, OnTimeout::Destroy) => (true, true),
        (State::Stopped | State::Failed, OnTimeout::Stop)
        | (State::Paused | State::Stopped | State::Failed, OnTimeout::Pause) => (false, false),
        (State::Creating | State::Destroying, _) => (false, false),
    };
    let timeout = terms
        .timeout()
        .filter(|_| timeout_counts)
        .map(|timeout| (timeout.saturating_sub(snapshot.began.elapsed(now)), Expiry::Timeout));
    let idle = terms
        .idle_timeout()
        .filter(|_| idle_counts)
        .map(|idle| (idle.saturating_sub(activity.idle_for(now)), Expiry::Idle));
    timeout.into_iter().chain(idle).min_by_key(|(left, _)| *left)
}

/// Reaps until the broker closes.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut swept = None;
    let mut noted = shared.clock.uptime();
    let mut measuring = None;
    loop {
        shared.alarm.looks();
        let now = shared.clock.uptime();
        if swept.is_none_or(|at| now.saturating_sub(at) >= limits::IDEMPOTENCY_SWEEP) {
            swept = Some(now);
            if let Err(error) = shared.directory.sweep_requests(shared.clock.wall()).await {
                warn!(%error, "cannot remove old idempotency keys");
            }
        }
        if now.saturating_sub(noted) >= limits::REAPER_INTERVAL {
            noted = now;
            note_activities(&shared);
            measure(&shared, &mut measuring);
        }
        let wait = reap(&shared).unwrap_or(limits::REAPER_INTERVAL).min(limits::REAPER_INTERVAL);
        shared.alarm.sleeps_until(now.saturating_add(wait));
        tokio::select! {
            () = shared.closing.cancelled() => return,
            () = shared.alarm.earlier.notified() => {}
            () = shared.clock.pass(wait) => {}
        }
    }
}

/// Measures volumes beside the reaping: a storage that hangs must not keep anything alive.
fn measure(shared: &Arc<Shared>, measuring: &mut Option<JoinHandle<()>>) {
    if measuring.as_ref().is_none_or(JoinHandle::is_finished) {
        let look = Arc::clone(shared);
        *measuring = Some(shared.tasks.spawn(async move {
            tokio::select! {
                () = look.closing.cancelled() => {}
                () = look.measure_active() => {}
            }
        }));
    }
}

/// Asks for the end of every sandbox whose time is over; says when the next one's is.
fn reap(shared: &Shared) -> Option<Duration> {
    let now = shared.now();
    let mut next: Option<Duration> = None;
    for handle in shared.handles() {
        let left = time_left(&handle.activity, &handle.snapshot.borrow(), &now);
        let Some((left, expiry)) = left else { continue };
        let wait = match left.is_zero() {
            true => {
                debug!(id = %handle.id, ?expiry, "the time of a sandbox is over");
                tell(&handle, LifecycleVerb::Expire);
                // Looked at again, lest its supervisor was too busy or could not do it.
                limits::REAPER_AGAIN
            }
            false => left,
        };
        next = Some(next.map_or(wait, |next| next.min(wait)));
    }
    next
}

fn note_activities(shared: &Shared) {
    for handle in shared.handles() {
        if let Some(last) = handle.activity.take_unnoted() {
            tell(&handle, LifecycleVerb::NoteActivity(Box::new(last)));
        }
    }
}

/// Says something to a supervisor without waiting for what it does about it. A full queue has enough
/// to do; it will be told again.
fn tell(handle: &Handle, verb: LifecycleVerb) {
    let (answer, _) = oneshot::channel();
    let _ = handle.inbox.try_send(Request { verb, answer });
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_deadline_wakes_the_reaper_if_it_is_the_first_or_comes_while_it_looks() {
        let alarm = Alarm::default();
        let woken = || alarm.earlier.notified().now_or_never().is_some();
        let secs = Duration::from_secs;
        alarm.looks();
        alarm.set(secs(20));
        alarm.sleeps_until(secs(10));
        assert!(woken(), "the look may have missed it");
        alarm.set(secs(20));
        assert!(!woken(), "it wakes before that");
        alarm.set(secs(5));
        assert!(woken());
    }
}
