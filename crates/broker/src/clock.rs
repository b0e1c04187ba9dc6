//! Clocks. The broker reads the time only through this trait, so that a test can let hours pass, set the wall clock or
//! suspend the machine.

use std::time::Duration;

use async_trait::async_trait;

/// # Behavior
/// - `uptime` never goes back, and also counts while the machine is suspended.
/// - `wall` may be set at any time.
#[async_trait]
pub trait Clock: Send + Sync {
    fn wall(&self) -> jiff::Timestamp;

    /// How long the host has been up.
    fn uptime(&self) -> Duration;

    /// Waits for about this long. It may return early or, after a suspend, late.
    async fn pass(&self, time: Duration);
}

/// The kernel's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn wall(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    fn uptime(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::try_from(time).expect("a host has never been up for less than no time")
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}
