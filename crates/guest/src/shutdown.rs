//! Ending every process of the sandbox: SIGTERM, some time, SIGKILL.
//!
//! As PID 1 the guest reaches all of them at once. Elsewhere (in tests, or where a runtime brings
//! its own init) it knows only its own children and whom they left it, and asks /proc for those.

use std::time::{Duration, Instant};

use crate::poll::Id;
use crate::{sys, tree};

/// How long SIGKILL may take before the guest exits all the same.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// How often to look for what is left without having been told.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Shutdown {
    /// Whom to tell; a signal has nobody.
    pub asker: Option<Id>,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Asked { until: Instant },
    Killed { until: Instant, again: Instant },
}

/// Whether the guest may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Waiting,
    Over,
}

impl Shutdown {
    pub fn begin(asker: Option<Id>, grace: Duration, now: Instant) -> Self {
        signal_all(libc::SIGTERM);
        // Nobody waits for years: a grace that overflows the clock is as good as a day.
        let until = now.checked_add(grace).unwrap_or(now + Duration::from_secs(86_400));
        Self { asker, stage: Stage::Asked { until } }
    }

    pub fn next_tick(&self) -> Instant {
        match self.stage {
            Stage::Asked { until } => until,
            Stage::Killed { again, .. } => again,
        }
    }

    /// Does what is due. `Over` when no process is left, or those that are cannot be killed.
    pub fn tick(&mut self, children: Children, now: Instant) -> Progress {
        match (children, self.stage) {
            (Children::None, _) => Progress::Over,
            (Children::Some, Stage::Asked { until }) if now < until => Progress::Waiting,
            (Children::Some, Stage::Asked { .. }) => {
                signal_all(libc::SIGKILL);
                self.stage = Stage::Killed { until: now + KILL_PATIENCE, again: now + PAUSE };
                Progress::Waiting
            }
            (Children::Some, Stage::Killed { until, .. }) if now >= until => Progress::Over,
            (Children::Some, Stage::Killed { until, again }) => {
                if now >= again {
                    signal_all(libc::SIGKILL);
                    self.stage = Stage::Killed { until, again: now + PAUSE };
                }
                Progress::Waiting
            }
        }
    }
}

/// Whether the guest has any child: as PID 1, whether the sandbox has any other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    Some,
    None,
}

/// Signals every process of the sandbox but the guest.
pub fn signal_all(signal: i32) {
    if sys::pid() == 1 {
        let _ = sys::kill(-1, signal);
        return;
    }
    for pid in tree::descendants(sys::pid()) {
        let _ = sys::kill(pid, signal);
    }
}
