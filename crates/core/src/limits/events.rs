//! Bounds of events and of what is derived from them.

use std::time::Duration;

/// When the log of events begins a new file, and when the oldest one goes. An event takes about 250 bytes.
pub const EVENT_SEGMENT_MAX_BYTES: u64 = 8 * 1024 * 1024;
pub const EVENTS_MAX_BYTES: u64 = 128 * 1024 * 1024;
/// How much of the log is read at a time.
pub const EVENTS_READ_BYTES: usize = 256 * 1024;

/// How far the timelines of sandboxes may be behind the log of events while nobody looks at them.
pub const TIMELINE_DELAY: Duration = Duration::from_secs(1);
/// When the timeline of a sandbox begins a new file; two are kept.
pub const TIMELINE_FILE_MAX_BYTES: u64 = 256 * 1024;

/// Refusals of one user for one reason within this time are one event.
pub const REFUSALS_TOLD_EVERY: Duration = Duration::from_secs(1);
/// How many users and reasons are told apart at a time.
pub const REFUSALS_TOLD_MAX: usize = 10_000;
