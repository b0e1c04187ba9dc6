//! Bounds of races.

use std::time::Duration;

/// How many races a node runs at once.
pub const RACES_MAX: usize = 64;
/// How long a judge may take, unless the request says otherwise.
pub const RACE_JUDGE: Duration = Duration::from_secs(600);
/// How much of the end of a racer's output its result has.
pub const RACE_OUTPUT_TAIL_BYTES: usize = 4096;
/// How many events a racer has at most: one for each of its stages.
pub const RACE_EVENTS_PER_RACER: usize = 8;
