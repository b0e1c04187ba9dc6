//! Ending a command as `systemctl stop` does: SIGTERM to all of its tree, some time, SIGKILL to what is
//! left. The guest does all of it by itself, so it comes to its end whatever becomes of the host's daemon.

use std::time::{Duration, Instant};

use guest_proto::How;

use super::{Exec, KILL_PAUSE, KILL_PAUSE_MAX, Phase};
use crate::sys::Exit;
use crate::tree::Tree;

/// Nobody waits for years: a grace that overflows the clock is as good as a day.
const GRACE_MAX: Duration = Duration::from_secs(86_400);

pub(super) struct Ending {
    until: Instant,
    /// When to look again whether anything lives.
    next: Instant,
    pause: Duration,
    /// How the first process ended, and when.
    pub exited: Option<(How, Instant)>,
}

impl Ending {
    /// When the loop must look at it again. As long as its first process lives, that one's end wakes us.
    pub fn next_tick(&self, deadline: Option<Instant>) -> Instant {
        let look = self.exited.map(|_| self.next);
        [look, deadline].into_iter().flatten().fold(self.until, Instant::min)
    }
}

impl Exec {
    /// Asks all of its tree to end, for at most this long. Nothing happens if it is ending or over.
    pub fn end(&mut self, grace: Duration, now: Instant) {
        if matches!(self.phase, Phase::Running) {
            self.leaf.signal(libc::SIGTERM);
            let until = now + grace.min(GRACE_MAX);
            self.phase =
                Phase::Ending(Ending { until, next: now, pause: KILL_PAUSE, exited: None });
        }
    }

    /// What the first process leaves behind has the rest of the grace; then all is killed.
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
