//! Limits of the gateway between a sandbox and the networks outside.

use std::time::Duration;

/// Concurrent connections of a sandbox whose policy names no number, and of all sandboxes together. A sandbox has at
/// most as many as are left for all.
pub const EGRESS_CONNECTIONS_DEFAULT: u32 = 1_024;
pub const EGRESS_CONNECTIONS_ALL_MAX: u64 = 16_384;
/// How long a client may take for its first bytes, its ClientHello, and the headers of a request.
pub const EGRESS_HANDSHAKE: Duration = Duration::from_secs(15);
/// A connection on which nothing was sent in either direction for this long ends.
pub const EGRESS_IDLE: Duration = Duration::from_secs(60 * 60);
/// How long connecting may take in total, and when the next address of the host is tried beside the first.
pub const EGRESS_DIAL: Duration = Duration::from_secs(15);
pub const EGRESS_DIAL_STAGGER: Duration = Duration::from_millis(250);
/// Addresses of one host that are tried.
pub const EGRESS_ADDRESSES_MAX: usize = 8;
/// Concurrent lookups of host names, of one sandbox, of one organization and of all. Each holds a thread.
pub const EGRESS_LOOKUPS_MAX: usize = 16;
pub const EGRESS_LOOKUPS_TENANT_MAX: usize = 32;
pub const EGRESS_LOOKUPS_ALL_MAX: usize = 128;
/// Buffer of each direction of a connection.
pub const EGRESS_BUFFER_BYTES: usize = 32 * 1024;
/// Maximum size of the headers of a request or an answer, and their number.
pub const EGRESS_HEADERS_MAX_BYTES: usize = 64 * 1024;
pub const EGRESS_HEADERS_MAX: usize = 128;
/// Concurrent requests of one HTTP/2 connection.
pub const EGRESS_STREAMS_MAX: u32 = 128;
/// What may be sent of one request or answer of HTTP/2, and of all of a connection, before it is taken.
pub const EGRESS_STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
pub const EGRESS_CONNECTION_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Host names that have an address in a sandbox. A new one displaces the one that was not used for the longest time.
pub const EGRESS_NAMES_MAX: usize = 8_192;
/// How long an answer of the resolver is valid. The address of a name does not change meanwhile.
pub const EGRESS_NAME_TTL: Duration = Duration::from_secs(60);
/// The time of all rates per second.
pub const EGRESS_SECOND: Duration = Duration::from_secs(1);
/// What may be sent at once of the bytes that a sandbox may send in a second, as a time.
pub const EGRESS_PACE_BURST: Duration = Duration::from_millis(250);
/// How long to wait when no connection can be accepted, because there are no descriptors left.
pub const EGRESS_ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// DNS queries per second of a sandbox, and how many may come at once. More are dropped.
pub const EGRESS_QUERIES_PER_SEC: u32 = 500;
pub const EGRESS_QUERIES_BURST: u32 = 1_000;
/// Maximum size of a DNS query.
pub const EGRESS_QUERY_MAX_BYTES: usize = 1_232;
/// Lines per second of a sandbox's network log, and how many may come at once. More are counted only.
pub const EGRESS_RECORDS_PER_SEC: u32 = 200;
pub const EGRESS_RECORDS_BURST: u32 = 2_000;
/// How long a connection waits for the owner's decision.
pub const EGRESS_ASK: Duration = Duration::from_secs(30);
/// Decisions that a sandbox may wait for, connections that wait for one, and new ones per minute.
pub const EGRESS_ASKS_MAX: usize = 16;
pub const EGRESS_ASK_WAITING_MAX: u32 = 64;
pub const EGRESS_ASKS_PER_MINUTE: u32 = 60;
pub const EGRESS_MINUTE: Duration = Duration::from_secs(60);
/// How long a refusal holds for the same host and port without asking again.
pub const EGRESS_ASK_REFUSED: Duration = Duration::from_secs(60);
/// Maximum length of the reason that a program gives.
pub const EGRESS_WHY_MAX_BYTES: usize = 500;
/// Destinations that are remembered for `network suggest`.
pub const EGRESS_USED_MAX: usize = 256;
/// Certificates for terminated hosts that are kept, and for how many days one is valid.
pub const EGRESS_LEAVES_MAX: usize = 1_024;
pub const EGRESS_LEAF_DAYS: i64 = 7;
/// Maximum length of a request's path in the log.
pub const EGRESS_LOGGED_PATH_MAX_BYTES: usize = 256;
/// How long the body of a refused request is read, and how much of it.
pub const EGRESS_DRAIN: Duration = Duration::from_millis(500);
pub const EGRESS_DRAIN_MAX_BYTES: usize = 8 * 1024 * 1024;
