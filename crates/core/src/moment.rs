//! A point in time that stays meaningful after the wall clock was set, the machine was suspended, the daemon ended, or
//! the host was rebooted.
//!
//! A moment has three parts: the wall clock, the boot id, and the host's uptime including suspend. The elapsed time
//! follows from them:
//!
//! - **in the same boot** only the uptime counts. It cannot be set, and it includes suspend, so a wall clock that
//!   jumps, forward or back, neither ends anything early nor keeps it alive;
//! - **in another boot** only the wall clock is left. If it shows less time than the present boot has lasted (it was
//!   set back, or has lost its battery), the length of the boot counts: at least that much has passed, so every
//!   deadline is eventually reached.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub wall: jiff::Timestamp,
    /// The host's boot id.
    pub boot_id: String,
    /// The host's uptime, including suspend.
    pub uptime_ms: u64,
}

impl Moment {
    /// A moment of which only the wall clock is known.
    pub fn of_wall(wall: jiff::Timestamp) -> Self {
        Self { wall, boot_id: String::new(), uptime_ms: 0 }
    }

    /// The time between this moment and `now`.
    pub fn elapsed(&self, now: &Self) -> Duration {
        if self.boot_id == now.boot_id {
            return Duration::from_millis(now.uptime_ms.saturating_sub(self.uptime_ms));
        }
        let by_wall = Duration::try_from(now.wall.duration_since(self.wall)).unwrap_or_default();
        by_wall.max(Duration::from_millis(now.uptime_ms))
    }

    /// The wall clock's reading when `after` has passed since this moment. It is computed from this moment's own wall
    /// clock, so that repeated calls agree, unless the clock was set meanwhile by more than `tolerance`.
    pub fn wall_after(&self, after: Duration, now: &Self, tolerance: Duration) -> jiff::Timestamp {
        let plus =
            |from: jiff::Timestamp, span| from.checked_add(span).unwrap_or(jiff::Timestamp::MAX);
        let naive = plus(self.wall, after);
        let left = after.saturating_sub(self.elapsed(now));
        let overdue = self.elapsed(now).saturating_sub(after);
        let exact = plus(now.wall, left).checked_sub(overdue).unwrap_or(jiff::Timestamp::MIN);
        if exact.duration_since(naive).unsigned_abs() > tolerance { exact } else { naive }
    }
}

/// A duration in milliseconds, for the API and files.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall_secs: i64, boot: &str, uptime_secs: u64) -> Moment {
        let wall = jiff::Timestamp::from_second(wall_secs).expect("a time");
        Moment { wall, boot_id: boot.to_owned(), uptime_ms: uptime_secs * 1000 }
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_wall_clock_that_is_set_changes_nothing_within_a_boot() {
        let began = at(1_000_000, "a", 50);
        for wall in [0, 999_000, 1_000_010, 9_000_000] {
            assert_eq!(began.elapsed(&at(wall, "a", 60)), secs(10), "{wall}");
        }
    }

    #[test]
    fn after_a_reboot_the_wall_clock_counts_but_never_less_than_the_boot() {
        let began = at(1_000_000, "a", 5000);
        assert_eq!(began.elapsed(&at(1_000_300, "b", 20)), secs(300));
        assert_eq!(began.elapsed(&at(0, "b", 20)), secs(20), "a clock without a battery");
        assert_eq!(began.elapsed(&at(1_000_005, "b", 20)), secs(20), "it was set back");
    }

    #[test]
    fn the_time_shown_is_steady_and_follows_a_clock_that_was_set() {
        let (began, tolerance) = (at(1_000_000, "a", 50), secs(2));
        let shown = |now: Moment| began.wall_after(secs(60), &now, tolerance).as_second();
        assert_eq!(shown(at(1_000_010, "a", 60)), 1_000_060);
        assert_eq!(shown(at(1_000_011, "a", 60)), 1_000_060, "a little drift is not shown");
        assert_eq!(shown(at(2_000_010, "a", 60)), 2_000_060);
        assert_eq!(shown(at(10, "a", 60)), 60);
        assert_eq!(shown(at(1_000_100, "a", 150)), 1_000_060, "what is past stays where it was");
    }
}
