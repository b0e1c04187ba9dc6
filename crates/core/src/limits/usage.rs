//! Bounds of the counting of use.

use std::time::Duration;

/// How often the use of all sandboxes is counted and written down. A daemon that is killed forgets at most this much.
pub const USAGE_EVERY: Duration = Duration::from_secs(60);
/// The unit of `memory_mb_hours` and `disk_mb_hours`.
pub const USAGE_HOUR: Duration = Duration::from_secs(3600);
/// How many days the counts are kept.
pub const USAGE_KEPT_DAYS: i64 = 400;
/// How long the period of a question is, if it does not say.
pub const USAGE_DEFAULT_DAYS: i64 = 30;
/// How many owners an answer has at most.
pub const USAGE_OWNERS_MAX: usize = 10_000;
