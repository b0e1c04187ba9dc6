//! The reaper: ends expired sandboxes, and records when the others were last used.
//!
//! Deadlines are not stored: they follow from the terms and from moments on disk (see [`Moment`]). So a restarted
//! daemon computes the same ones, and changing the clock affects none of them. The reaper sleeps until the next
//! deadline, at most for one interval, so that after a suspend of the machine it is late by no more than that. The
//! reaper only asks: the sandbox's supervisor decides whether it has expired, after every keepalive queued before.
//!
//! [`Moment`]: sandkeep_core::Moment

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::activity::Activity;
use super::handle::Handle;
use super::request::{Command, Reply};
use super::supervisor::{Fate, Published, Supervisor};
use crate::Broker;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{AtExpiry, Expiry, Moment, Next, OnTimeout, State, Trigger, failpoint, limits};
use sandkeep_home::DataDir;

/// Wakes the reaper if a deadline is earlier than all that it knows.
#[derive(Default)]
pub(crate) struct Alarm {
    /// When it wakes, in time since boot.
    next: Mutex<Duration>,
    earlier: Notify,
}

impl Alarm {
    /// Registers a deadline at this time since boot.
    pub fn set(&self, at: Duration) {
        if at < *self.next.lock().unwrap_or_else(PoisonError::into_inner) {
            self.earlier.notify_one();
        }
    }

    /// From here on every deadline wakes the reaper: it may come too late for the check that follows.
    fn looks(&self) {
        self.sleeps_until(Duration::MAX);
    }

    fn sleeps_until(&self, at: Duration) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

/// The remaining time of a sandbox, and which of its timeouts ends first; `None` if it has none.
pub(crate) fn time_left(
    activity: &Activity,
    published: &Published,
    now: &Moment,
) -> Option<(Duration, Expiry)> {
    let terms = &published.meta.terms;
    let (timeout_counts, idle_counts) = match (published.status.state(), terms.on_timeout) {
        (State::Running, _) => (true, true),
        (State::Paused, OnTimeout::Destroy | OnTimeout::Stop)
        | (State::Stopped, OnTimeout::Destroy) => (true, false),
        // It is unusable, so it would stay forever.
        (State::Failed, OnTimeout::Destroy) => (true, true),
        (State::Stopped | State::Failed, OnTimeout::Stop)
        | (State::Paused | State::Stopped | State::Failed, OnTimeout::Pause) => (false, false),
        (State::Creating | State::Destroying, _) => (false, false),
    };
    let timeout = terms.timeout().filter(|_| timeout_counts).map(|timeout| {
        (timeout.saturating_sub(published.meta.began.elapsed(now)), Expiry::Timeout)
    });
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

/// Measures volumes concurrently with reaping: a storage that hangs must not keep sandboxes alive.
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

/// Requests the end of every expired sandbox; returns the next deadline.
fn reap(shared: &Shared) -> Option<Duration> {
    let now = shared.now();
    let mut next: Option<Duration> = None;
    for handle in shared.handles() {
        let left = time_left(&handle.activity, &handle.published.borrow(), &now);
        let Some((left, expiry)) = left else { continue };
        let wait = if left.is_zero() {
            debug!(id = %handle.id, ?expiry, "the time of a sandbox is over");
            tell(&handle, Command::Expire);
            // Checked again, in case its supervisor was too busy or failed.
            limits::REAPER_AGAIN
        } else {
            left
        };
        next = Some(next.map_or(wait, |next| next.min(wait)));
    }
    next
}

fn note_activities(shared: &Shared) {
    for handle in shared.handles() {
        if let Some(last) = handle.activity.take_unnoted() {
            tell(&handle, |reply| Command::NoteActivity(Box::new(last), reply));
        }
    }
}

/// Sends a command to a supervisor without waiting for the result. If the queue is full, the command is dropped; it
/// will be sent again.
pub(super) fn tell(handle: &Handle, command: impl FnOnce(Reply<()>) -> Command) {
    let _ = handle.enqueue(command);
}

impl Broker {
    /// Records for the next daemon when each sandbox was last used.
    pub(crate) async fn note_activities(&self) {
        let noted = self.shared.handles().into_iter().map(|handle| async move {
            let Some(last) = handle.activity.take_unnoted() else { return };
            let note = |reply| Command::NoteActivity(Box::new(last), reply);
            if let Err(error) = handle.hand_over(&self.shared, note).await {
                debug!(id = %handle.id, %error, "cannot note down when a sandbox was last used");
            }
        });
        futures_util::future::join_all(noted).await;
    }
}

impl Supervisor {
    /// Ends the sandbox if it has expired: its timeout may have been extended since the reaper looked.
    pub(crate) async fn expire(&mut self) -> (Fate, Result<(), Error>) {
        let Some(expiry) = self.expiry().await else { return (Fate::Lives, Ok(())) };
        info!(id = %self.id(), why = %expiry, "the time of a sandbox is over");
        match self.meta.terms.on_timeout {
            OnTimeout::Destroy => self.destroy().await,
            OnTimeout::Stop => (Fate::Lives, self.end_because(expiry, AtExpiry::Stop).await),
            OnTimeout::Pause => (Fate::Lives, self.end_because(expiry, AtExpiry::Pause).await),
        }
    }

    /// A running command is frozen as well: its sandbox has expired.
    async fn end_because(&mut self, expiry: Expiry, how: AtExpiry) -> Result<(), Error> {
        let (status, next) = self.next(Trigger::Expired(expiry, how))?;
        if next == Next::Stay {
            return Ok(());
        }
        self.record(status).await?;
        match how {
            AtExpiry::Stop => {
                failpoint!("stop.after_intent");
                self.finish_stop().await
            }
            AtExpiry::Pause => {
                failpoint!("pause.after_intent");
                self.finish_pause().await
            }
        }
    }

    /// Which of its timeouts has expired. Idleness is only assumed until the guest confirms it: an earlier daemon may
    /// have left a running command.
    async fn expiry(&self) -> Option<Expiry> {
        let now = self.shared.now();
        let left = time_left(&self.activity, &self.published.borrow(), &now);
        match left {
            Some((left, expiry)) if left.is_zero() => match expiry {
                Expiry::Timeout => Some(expiry),
                Expiry::Idle if self.runs_commands().await => {
                    self.activity.touch();
                    None
                }
                Expiry::Idle => Some(expiry),
            },
            Some(_) | None => None,
        }
    }

    async fn runs_commands(&self) -> bool {
        let Some(guest) = self.published.borrow().guest.clone() else { return false };
        match timeout(limits::ENSURE_PING, guest.execs()).await {
            Ok(Ok(execs)) => execs.iter().any(|exec| exec.running),
            Ok(Err(_)) | Err(_) => false,
        }
    }

    pub(crate) async fn note_activity(&self, last: Moment) -> Result<(), Error> {
        let home = self.home.clone();
        let write = move |_: &DataDir| match home.note_activity(&last) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        };
        self.shared.blocking(write).await
    }
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
