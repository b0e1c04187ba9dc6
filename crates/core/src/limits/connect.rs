//! The Connect protocol, and sockets that hold connections for a process that starts.

use std::time::Duration;

use super::MIB;

/// The largest message, as it is sent and once it is decompressed.
pub const CONNECT_MESSAGE_MAX_BYTES: usize = 16 * MIB as usize;
/// The longest deadline that a client can name; the protocol has ten digits for it.
pub const CONNECT_TIMEOUT_MAX_DIGITS: usize = 10;

/// How long a connection waits for the port inside to open, and how often it is tried.
pub const PORT_HOLD: Duration = Duration::from_secs(120);
pub const PORT_HOLD_RETRY: Duration = Duration::from_millis(50);

/// How long a pause over Flex's door waits for tools that run.
pub const FLEX_PAUSE_DRAIN: Duration = Duration::from_secs(30);
