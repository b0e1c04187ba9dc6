//! Limits of the network of sandboxes while it is used.

use std::time::Duration;

/// When the network log of a sandbox starts a new file; two are kept.
pub const NETWORK_LOG_FILE_MAX_BYTES: u64 = 512 * 1024;
/// Decisions of all sandboxes that wait to be written to their logs; more are lost.
pub const NETWORK_LOG_QUEUE_MAX: usize = 4_096;
/// How many decisions a follower of a network log may lag behind before it misses some.
pub const NETWORK_LOG_LAG_MAX: usize = 256;
/// Refusals of one destination of a sandbox within this time are one event.
pub const NETWORK_DENIED_TOLD_EVERY: Duration = Duration::from_secs(60);
/// How many destinations of one sandbox are told apart in that time; further ones are counted together.
pub const NETWORK_DENIED_TOLD_MAX: usize = 16;

/// Requests of one sandbox that are told as events in a minute.
pub const NETWORK_REQUESTED_TOLD_PER_MINUTE: u32 = 30;

/// How often a gateway that could not be opened for a running sandbox is tried again.
pub const GATEWAY_RETRY: Duration = Duration::from_secs(10);

/// How long the KMS command may take, and how much it may print.
pub const KMS_ANSWER: Duration = Duration::from_secs(30);
pub const KMS_ANSWER_MAX_BYTES: usize = 64 * 1024;
/// Maximum size of a file with presets.
pub const NETWORK_PRESETS_FILE_MAX_BYTES: u64 = 1024 * 1024;
