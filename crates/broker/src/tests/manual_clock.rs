//! A clock that only the test moves.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::Clock;

pub(crate) struct ManualClock {
    wall: Mutex<jiff::Timestamp>,
    uptime: watch::Sender<Duration>,
}

impl ManualClock {
    pub fn new() -> Self {
        let wall = jiff::Timestamp::from_second(1_800_000_000).expect("a time");
        Self { wall: Mutex::new(wall), uptime: watch::Sender::new(Duration::from_secs(100)) }
    }

    /// Lets time pass for everybody.
    pub fn advance(&self, time: Duration) {
        self.set_wall(self.wall() + time);
        self.uptime.send_modify(|uptime| *uptime += time);
    }

    /// Like an administrator, or a time server.
    pub fn set_wall(&self, wall: jiff::Timestamp) {
        *self.wall.lock().expect("no test panics with it") = wall;
    }

    /// Another boot: the time since then begins anew.
    pub fn reboot(&self) {
        self.uptime.send_replace(Duration::ZERO);
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn wall(&self) -> jiff::Timestamp {
        *self.wall.lock().expect("no test panics with it")
    }

    fn uptime(&self) -> Duration {
        *self.uptime.borrow()
    }

    async fn pass(&self, time: Duration) {
        let until = self.uptime() + time;
        let mut uptime = self.uptime.subscribe();
        let _ = uptime.wait_for(|uptime| *uptime >= until).await;
    }
}
