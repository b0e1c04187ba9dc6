//! What a client of the API waits for and takes.

use std::time::Duration;

/// How long it tries to reach the daemon.
pub const CONNECT: Duration = Duration::from_secs(10);
/// The most bytes of an answer, and of a line of one, that it reads before it gives up.
pub const CLIENT_ANSWER_MAX_BYTES: usize = 256 * 1024 * 1024;
pub const CLIENT_LINE_MAX_BYTES: usize = 64 * 1024 * 1024;
