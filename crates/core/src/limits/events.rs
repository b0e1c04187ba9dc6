//! Limits of events and of data derived from them.

use std::time::Duration;

/// When the event log starts a new file, and when the oldest one is removed. An event takes about 250 bytes.
pub const EVENT_SEGMENT_MAX_BYTES: u64 = 8 * 1024 * 1024;
pub const EVENTS_MAX_BYTES: u64 = 128 * 1024 * 1024;
/// Chunk size for reading the log.
pub const EVENTS_READ_BYTES: usize = 256 * 1024;

/// How far the timelines of sandboxes may lag behind the event log while nobody reads them.
pub const TIMELINE_DELAY: Duration = Duration::from_secs(1);
/// When the timeline of a sandbox starts a new file; two are kept.
pub const TIMELINE_FILE_MAX_BYTES: u64 = 256 * 1024;

/// Refusals of one user for one reason within this time are combined into one event.
pub const REFUSALS_TOLD_EVERY: Duration = Duration::from_secs(1);
/// How many combinations of user and reason are tracked.
pub const REFUSALS_TOLD_MAX: usize = 10_000;
