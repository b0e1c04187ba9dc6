//! Bounds of the way by which a repository is cloned from elsewhere.

use std::time::Duration;

/// How many connections one clone may make, one after the other and at once.
pub const RELAY_CONNECTIONS_MAX: usize = 256;
pub const RELAY_CONNECTIONS_AT_ONCE_MAX: usize = 8;
/// What may come in, and go out, for one clone.
pub const RELAY_MAX_BYTES: u64 = super::SOURCE_MAX_BYTES;
/// How much is carried at a time.
pub const RELAY_CHUNK_BYTES: usize = 64 * 1024;
/// How a connection may begin: how long its first words are, and how long they take.
pub const RELAY_HEAD_MAX_BYTES: usize = 8 * 1024;
pub const RELAY_HEAD: Duration = Duration::from_secs(10);
