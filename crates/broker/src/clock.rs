//! What time it is. The broker asks here and nowhere else for everything that has a deadline, so that
//! a test can let hours pass, set the wall clock or put the machine to sleep.

use std::time::Duration;

use async_trait::async_trait;

/// # Behavior
/// - `uptime` never goes back, and goes on while the machine sleeps.
/// - `wall` may be set by anybody at any time.
#[async_trait]
pub trait Clock: Send + Sync {
    fn wall(&self) -> jiff::Timestamp;

    /// How long the host has been up.
    fn uptime(&self) -> Duration;

    /// Waits for about so long. It may return early or, after a sleep of the machine, late.
    async fn pass(&self, time: Duration);
}

/// The clocks of the kernel.
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
