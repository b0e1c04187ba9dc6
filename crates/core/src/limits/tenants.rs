//! What the requests of one tenant may hold of the daemon at a time, whatever they are.

use super::MIB;

/// Memory of the requests under way of a user, and of an organization.
pub const REQUESTS_USER_MB: u64 = 256;
pub const REQUESTS_ORGANIZATION_MB: u64 = 512;
/// What a request counts beside its body and a large answer: what is on its way to its client. So a user has at most
/// 4,096 requests under way.
pub const REQUEST_BYTES: u64 = CONNECTION_BUFFER_BYTES as u64;
/// What a body over HTTP/2 counts that is still to come: as much can wait to be read on a connection.
pub const REQUEST_WINDOW_BYTES: u32 = 256 * 1024;
/// A larger answer counts until it is sent.
pub const REQUEST_ANSWER_FREE_BYTES: u64 = REQUEST_BYTES;
/// How much of an answer waits on a connection, and how large the head of a request can be.
pub const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;

/// Reads of logs (of events, of a sandbox, of its network) at a time, and those of one organization. More wait.
pub const LOG_READS_MAX: usize = 32;
pub const LOG_READS_TENANT_MAX: usize = 8;

/// Host names that the daemon looks up at a time, for its own calls. Each holds a thread.
pub const OUTGOING_LOOKUPS_MAX: usize = 64;

const _: () = assert!(REQUESTS_USER_MB * MIB / REQUEST_BYTES == super::CONNECTIONS_EACH_MAX as u64);
