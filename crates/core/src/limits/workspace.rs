//! Limits of the relay through which a remote repository is cloned.

use std::time::Duration;

/// Connections of one clone, in total and concurrently.
pub const RELAY_CONNECTIONS_MAX: usize = 256;
pub const RELAY_CONNECTIONS_AT_ONCE_MAX: usize = 8;
/// Maximum bytes received, and sent, for one clone.
pub const RELAY_MAX_BYTES: u64 = super::SOURCE_MAX_BYTES;
/// Chunk size for copying.
pub const RELAY_CHUNK_BYTES: usize = 64 * 1024;
/// Limits of the first message of a connection: size and time.
pub const RELAY_HEAD_MAX_BYTES: usize = 8 * 1024;
pub const RELAY_HEAD: Duration = Duration::from_secs(10);
