//! Ends a command like `systemctl stop`: SIGTERM to the whole tree, a grace period, SIGKILL to the rest. The guest does
//! all of it by itself, so it finishes even if the host's daemon dies.

use std::time::{Duration, Instant};

use guest_proto::How;

use super::{Exec, KILL_PAUSE, KILL_PAUSE_MAX, Phase};
use crate::sys::Exit;
use crate::tree::Tree;

/// A grace period that overflows the clock is limited to a day.
const GRACE_MAX: Duration = Duration::from_secs(86_400);

pub(super) struct Ending {
    until: Instant,
    /// When to check again whether anything is alive.
    next: Instant,
    pause: Duration,
    /// How the first process ended, and when.
    pub exited: Option<(How, Instant)>,
}

impl Ending {
    /// When the loop must check it again. While its first process lives, its death wakes us.
    pub fn next_tick(&self, deadline: Option<Instant>) -> Instant {
        let look = self.exited.map(|_| self.next);
        [look, deadline].into_iter().flatten().fold(self.until, Instant::min)
    }
}

impl Exec {
    /// Sends SIGTERM to the whole tree, with at most this grace period. Does nothing if it is ending or has ended.
    pub fn end(&mut self, grace: Duration, now: Instant) {
        if matches!(self.phase, Phase::Running) {
            self.leaf.signal(libc::SIGTERM);
            let until = now + grace.min(GRACE_MAX);
            self.phase =
                Phase::Ending(Ending { until, next: now, pause: KILL_PAUSE, exited: None });
        }
    }

    /// Processes left by the first one get the rest of the grace period; then all are killed.
    pub(super) fn tick_ending(&mut self, now: Instant) {
        let Phase::Ending(ending) = &mut self.phase else { return };
        let all_over =
            now >= ending.next && ending.exited.is_some() && self.leaf.look() == Tree::Empty;
        match ending.exited {
            Some((how, at)) if all_over => {
                self.phase = Phase::Exited { how, at };
                self.settle();
            }
            Some(_) | None if now >= ending.until => self.kill(How::Canceled, now),
            Some(_) => {
                ending.next = now + ending.pause;
                ending.pause = (ending.pause * 2).min(KILL_PAUSE_MAX);
            }
            None => {}
        }
    }
}

impl From<Exit> for How {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Code(code) => Self::Exited(code),
            Exit::Signal(signal) => Self::Signaled(signal),
        }
    }
}
