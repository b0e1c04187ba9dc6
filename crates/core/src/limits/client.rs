//! Timeouts and limits of an API client.

use std::time::Duration;

/// Timeout for connecting to the daemon.
pub const CONNECT: Duration = Duration::from_secs(10);
/// Maximum size of an answer, and of one line of an answer.
pub const CLIENT_ANSWER_MAX_BYTES: usize = 256 * 1024 * 1024;
pub const CLIENT_LINE_MAX_BYTES: usize = 64 * 1024 * 1024;
