//! Token buckets: how often something may happen, and how many times at once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sandkeep_core::limits::EGRESS_PACE_BURST;
use tokio::time::Instant;

/// Counts events of equal cost.
#[derive(Debug)]
pub(crate) struct Rate {
    each: Duration,
    burst: Duration,
    /// When the bucket will be full.
    full_at: Mutex<Instant>,
}

impl Rate {
    /// `per_interval` events in each interval, and at most `burst` at once.
    pub(crate) fn new(per_interval: u32, interval: Duration, burst: u32) -> Self {
        let each = interval / per_interval.max(1);
        Self { each, burst: each * burst.max(1), full_at: Mutex::new(Instant::now()) }
    }

    /// Whether one more event may happen now; then it is counted.
    pub(crate) fn take(&self) -> bool {
        let now = Instant::now();
        // Each value is complete, so even a poisoned lock guards a valid one.
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let after = (*full_at).max(now) + self.each;
        let fits = after <= now + self.burst;
        if fits {
            *full_at = after;
        }
        fits
    }
}

/// Spreads bytes over time. A sender waits until its bytes are paid for, so that all senders take turns.
#[derive(Debug)]
pub(crate) struct Pace {
    free_at: Mutex<Instant>,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { free_at: Mutex::new(Instant::now()) }
    }

    /// Counts these bytes. Until the returned time the sender must not send more.
    pub(crate) fn pay(&self, bytes: u64, per_sec: u64) -> Option<Instant> {
        let now = Instant::now();
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(per_sec.max(1));
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let after = (*free_at).max(now).checked_add(cost).unwrap_or(*free_at);
        *free_at = after;
        let until = after.checked_sub(EGRESS_PACE_BURST)?;
        (until > now).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_one_at_a_time() {
        let rate = Rate::new(10, Duration::from_secs(1), 3);
        let taken = (0..10).filter(|_| rate.take()).count();
        assert_eq!(taken, 3);
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!((rate.take(), rate.take()), (true, false));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!((0..10).filter(|_| rate.take()).count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_spread_over_time() {
        let pace = Pace::new();
        assert_eq!(pace.pay(100, 1_000), None);
        let until = pace.pay(1_000, 1_000).expect("a wait");
        assert_eq!(until - Instant::now(), Duration::from_millis(850));
        let next = pace.pay(1_000, 1_000).expect("a longer wait");
        assert_eq!(next - until, Duration::from_secs(1));
    }
}
