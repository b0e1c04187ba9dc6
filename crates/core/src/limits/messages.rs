//! Requests that come as messages.

use std::time::Duration;

/// Messages that are looked at or worked on at once; the next one is refused.
pub const MESSAGES_AT_ONCE_MAX: usize = 512;
/// Those of them whose sender is known. One organization has at most half.
pub const COMMANDS_AT_ONCE_MAX: usize = 256;
/// How long a message may be worked on: nobody can tell that its sender has gone.
pub const COMMAND_MAX: Duration = Duration::from_secs(60 * 60);
/// What the headers of a reply may take of the largest message.
pub const REPLY_HEADERS_MAX_BYTES: usize = 4 * 1024;
/// How long a short command that we run in a sandbox for ourselves may take.
pub const OWN_COMMAND_MAX: Duration = Duration::from_secs(30);
