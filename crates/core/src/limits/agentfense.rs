//! AgentFense's door.

use std::time::Duration;

/// The time of a command whose request names none.
pub const AGENTFENSE_EXEC_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of each output an answer has: both together are less than a message may hold.
pub const AGENTFENSE_TEXT_BYTES: usize = 1_900_000;
/// The largest part of a stream.
pub const AGENTFENSE_FRAME_BYTES: usize = 64 * 1024;
/// How many sandboxes or codebases are on one page. Clients do not ask for a second one.
pub const AGENTFENSE_PAGE_MAX: usize = 5_000;
/// How many files one answer tells of.
pub const AGENTFENSE_FILES_MAX: usize = 20_000;
/// How many codebases of a directory's name one owner can have.
pub const AGENTFENSE_NAMES_TRIED: usize = 1_000;
