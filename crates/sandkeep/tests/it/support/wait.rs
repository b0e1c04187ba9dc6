//! Waiting for a condition. The deadline only limits a failure; a passing test takes as long as the condition does.

use std::time::{Duration, Instant};

/// How long a condition may take before the test fails.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// Immediate effects, on a loaded machine.
    Short,
    /// Effects with a grace period or an interval of their own.
    Long,
}

impl Patience {
    fn limit(self) -> Duration {
        match self {
            Self::Short => Duration::from_secs(20),
            Self::Long => Duration::from_secs(60),
        }
    }
}

const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Waits until `condition` holds; fails with `what` if it does not in time.
pub fn until(what: &str, patience: Patience, mut condition: impl FnMut() -> bool) {
    until_some(what, patience, || condition().then_some(()));
}

/// Waits until there is a value.
pub fn until_some<T>(what: &str, patience: Patience, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(began.elapsed() < patience.limit(), "waited in vain until {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}
