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

/// Followers of the events at once, of all owners. One organization alone has at most half.
pub const EVENT_FOLLOWERS_MAX: usize = 256;
/// How often a follower hears how far it has come, at least.
pub const EVENT_HEARTBEAT: Duration = Duration::from_secs(15);
/// How many events are looked at for one page.
pub const EVENT_PAGE_SCAN_MAX: usize = 50_000;

/// Webhooks of one user, and of one daemon.
pub const WEBHOOKS_PER_USER_MAX: usize = 16;
pub const WEBHOOKS_MAX: usize = 256;
pub const WEBHOOK_URL_MAX_BYTES: usize = 2048;
pub const WEBHOOK_KINDS_MAX: usize = 64;
/// The bytes of a webhook's secret, as Standard Webhooks has them.
pub const WEBHOOK_SECRET_MIN_BYTES: usize = 24;
pub const WEBHOOK_SECRET_MAX_BYTES: usize = 64;
/// A receiver has to answer within this time.
pub const WEBHOOK_ANSWER: Duration = Duration::from_secs(15);
/// How much of an answer is read.
pub const WEBHOOK_ANSWER_MAX_BYTES: usize = 64 * 1024;
/// Between the first failure and the next attempt. It doubles with each failure.
pub const WEBHOOK_BACKOFF_FIRST: Duration = Duration::from_secs(1);
pub const WEBHOOK_BACKOFF_MAX: Duration = Duration::from_secs(60 * 60);
/// A webhook that has failed for so long is disabled.
pub const WEBHOOK_FAILING_MAX: Duration = Duration::from_secs(3 * 24 * 60 * 60);
/// How long addresses that were checked are used for further deliveries.
pub const WEBHOOK_ADDRESS_KEPT: Duration = Duration::from_secs(60);
/// How often a webhook reads the log while events are recorded without a pause.
pub const WEBHOOK_READ_EVERY: Duration = Duration::from_millis(20);
/// After how many events that are not for a webhook its position is written.
pub const WEBHOOK_SKIPPED_MAX: u64 = 1_000;
/// How many paths an event names that concerns several.
pub const EVENT_PATHS_MAX: usize = 20;
/// How much of a path an event has.
pub const EVENT_PATH_MAX_BYTES: usize = 512;
