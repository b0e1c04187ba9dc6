//! Limits of the connections that are caught in the network namespace of a sandbox with a way out.

/// Connections that wait to be accepted; the namespace's `somaxconn` allows no more.
pub const CAUGHT_BACKLOG: i32 = 512;

/// Receive buffer of a caught connection on the daemon's side. Unread bytes that the sandbox sent are charged to no
/// control group.
pub const CAUGHT_RECEIVE_BYTES: usize = 64 * 1024;

/// DNS queries that wait to be read, in bytes.
pub const CAUGHT_QUERIES_BYTES: usize = 64 * 1024;
