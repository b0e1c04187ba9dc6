//! Bounds of the audit log.

use std::time::Duration;

/// The size of the audit log and the age of its records, unless the configuration says otherwise.
pub const AUDIT_DEFAULT_MB: u64 = 1024;
pub const AUDIT_MIN_MB: u64 = 1;
pub const AUDIT_DEFAULT_DAYS: u64 = 365;
pub const AUDIT_MAX_DAYS: u64 = 36_500;
/// A file of the log has at most this size, and at most this part of the whole log.
pub const AUDIT_SEGMENT_MAX_BYTES: u64 = 8 * 1024 * 1024;
pub const AUDIT_SEGMENTS_MIN: u64 = 8;
/// A file that is older than this is followed by a new one, so that its records can expire.
pub const AUDIT_SEGMENT_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest line of the log, and the longest text in one: all texts of a record fit even if each character is
/// written as an escape.
pub const AUDIT_RECORD_MAX_BYTES: u64 = 20 * 1024;
pub const AUDIT_TEXT_MAX_BYTES: usize = 256;
/// How much space is allocated at a time, ahead of the records.
pub const AUDIT_ALLOCATION_BYTES: u64 = 256 * 1024;
/// Which part of a file the refusals and reads of one organization may take: one in so many.
pub const AUDIT_SHARE: u64 = 8;
/// Requests that repeat within this time and change nothing are one record.
pub const AUDIT_REPEATS_WITHIN: Duration = Duration::from_secs(1);
/// How many such requests are told apart at a time.
pub const AUDIT_REPEATS_MAX: usize = 10_000;
/// How often repeats are written down, expired files are removed and the log is synced.
pub const AUDIT_TICK: Duration = Duration::from_secs(1);
/// How many records are read at a time.
pub const AUDIT_BATCH: usize = 256;
/// The most readers that follow the log through the API at a time.
pub const AUDIT_FOLLOWERS_MAX: usize = 16;
/// How often the counts of what exceeded a share are written down, and how often expired files are looked for.
pub const AUDIT_SUPPRESSED_TOLD_EVERY: Duration = Duration::from_secs(60);
