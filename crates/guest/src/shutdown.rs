//! Ends every process of the sandbox: SIGTERM, a grace period, SIGKILL.
//!
//! As PID 1 the guest reaches all of them at once. Otherwise (in tests, or if a runtime has its own init) it knows only
//! its own and its adopted children, and finds them in /proc.

use std::time::{Duration, Instant};

use crate::poll::Id;
use crate::{sys, tree};

/// How long SIGKILL may take before the guest exits all the same.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// Polling interval for the remaining processes.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Shutdown {
    /// The connection to answer; a signal has none.
    pub asker: Option<Id>,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Asked { until: Instant },
    Killed { until: Instant, again: Instant },
}

/// Whether the guest may exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Waiting,
    Over,
}

impl Shutdown {
    pub fn begin(asker: Option<Id>, grace: Duration, now: Instant) -> Self {
        signal_all(libc::SIGTERM);
        // A grace period that overflows the clock is limited to a day.
        let until = now.checked_add(grace).unwrap_or(now + Duration::from_secs(86_400));
        Self { asker, stage: Stage::Asked { until } }
    }

    pub fn next_tick(&self) -> Instant {
        match self.stage {
            Stage::Asked { until } => until,
            Stage::Killed { again, .. } => again,
        }
    }

    /// Handles what is due. `Over` when no process is left, or the rest cannot be killed.
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
