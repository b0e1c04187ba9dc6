//! Timeouts and limits of an API client.

use std::time::Duration;

/// Timeout for connecting to the daemon.
pub const CONNECT: Duration = Duration::from_secs(10);
/// Maximum size of an answer, and of one line of an answer.
pub const CLIENT_ANSWER_MAX_BYTES: usize = 256 * 1024 * 1024;
pub const CLIENT_LINE_MAX_BYTES: usize = 64 * 1024 * 1024;
/// How many sandboxes a command line like `stop --all` works on at once.
pub const CLI_SANDBOXES_AT_ONCE: usize = 8;
/// How often `ls --watch` and `stats` refresh what they show.
pub const CLI_REFRESH: Duration = Duration::from_secs(2);
/// How much output `logs --tail` keeps while it reads.
pub const CLI_TAIL_MAX_BYTES: usize = 32 * 1024 * 1024;
/// Maximum size of a file for `--env-file`.
pub const CLI_ENV_FILE_MAX_BYTES: u64 = 1024 * 1024;
/// Maximum size of the list of a caller's files that a plan for `apply` is made from.
pub const APPLY_FILES_MAX_BYTES: usize = 32 * 1024 * 1024;
/// Maximum size of a file that `apply --interactive` shows hunk by hunk.
pub const APPLY_HUNKS_MAX_BYTES: u64 = 1024 * 1024;
/// How long the sandbox of a `run` at a daemon stays once its client was killed.
pub const RUN_ABANDONED: Duration = Duration::from_secs(60);
/// How long the sandbox of a session of MCP over HTTP may be idle before it is destroyed.
pub const MCP_SESSION_IDLE: Duration = Duration::from_secs(60 * 60);
