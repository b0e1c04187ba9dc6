//! Waiting for a condition. The deadline only bounds a failure; a passing test takes as long as the condition does.

use std::time::{Duration, Instant};

/// How long a condition may take before the test fails.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    Long,
}

impl Patience {
    fn limit(self) -> Duration {
        match self {
            Self::Long => Duration::from_secs(60),
        }
    }
}

const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Waits until there is a value; fails, saying `what`, if there is none in time.
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

/// The same beside other tasks.
pub async fn eventually_some<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(began.elapsed() < Patience::Long.limit(), "waited in vain until {what}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    eventually_some(what, async || condition().then_some(())).await;
}
