//! Limits of codebase rules, and of the processes that keep them.

use std::time::Duration;

/// Rules of one sandbox, those of its preset included.
pub const RULES_MAX: usize = 256;
/// Maximum length of a pattern, and number of its segments.
pub const RULE_PATTERN_MAX_BYTES: usize = 1024;
pub const RULE_SEGMENTS_MAX: usize = 32;
/// All patterns of one sandbox together.
pub const RULE_PATTERNS_MAX_BYTES: usize = 64 * 1024;

/// How many names are examined to find out whether a directory leads to anything readable; then it is hidden.
pub const RULEFS_WAY_MAX_NAMES: usize = 50_000;
/// How many descriptors a server keeps open for files and directories of its tree.
pub const RULEFS_OPEN_MAX: usize = 1_024;
/// The descriptors that one server may have, including those of deleted files that are still in use.
pub const RULEFS_DESCRIPTORS_MAX: u64 = 16_384;
/// The memory that one server may have.
pub const RULEFS_MEMORY_MAX_BYTES: u64 = 512 * 1024 * 1024;
/// Threads of a server that answer requests.
pub const RULEFS_THREADS: usize = 2;
/// Maximum size of one read or write.
pub const RULEFS_WRITE_MAX_BYTES: usize = 1024 * 1024;
/// Maximum size of one extended attribute.
pub const RULEFS_XATTR_MAX_BYTES: usize = 64 * 1024;
/// Maximum size of a control message. It must hold the longest rules and all recorded refusals, and fit a socket.
pub const RULEFS_MESSAGE_MAX_BYTES: usize = 128 * 1024;
/// Recorded refusals, and the maximum length of their paths; the end of a longer one is kept.
pub const RULEFS_REFUSALS_MAX: usize = 64;
pub const RULEFS_REFUSAL_PATH_MAX_BYTES: usize = 1024;
/// How long a server may take to start, and to answer a control message.
pub const RULEFS_START: Duration = Duration::from_secs(10);
pub const RULEFS_ANSWER: Duration = Duration::from_secs(30);
/// How long a stopped server may take to end before its connection is aborted, and how often that is checked.
pub const RULEFS_ENDS: Duration = Duration::from_secs(5);
pub const RULEFS_LOOK_AGAIN: Duration = Duration::from_millis(2);
/// How many servers in a row may die within [`RULEFS_SETTLED`] of their start; then the mount fails.
pub const RULEFS_TAKEOVERS_MAX: u32 = 5;
pub const RULEFS_SETTLED: Duration = Duration::from_secs(1);
/// The journal of known files is rewritten when it is larger than this and twice what it has to say.
pub const RULEFS_JOURNAL_MIN_BYTES: u64 = 1024 * 1024;

/// What a board keeps for readers at least; at most about three times as much. See `sys::board`.
pub const BOARD_KEPT_BYTES: u64 = 1024 * 1024;
/// One record: a name of 255 bytes and some numbers.
pub const BOARD_RECORD_MAX_BYTES: usize = 512;
/// Files that other servers of a tree have open for writing. With more, the kernel asks about every name and file.
pub const RULEFS_WRITTEN_MAX: usize = 16_384;
/// How many files one request to a server asks about.
pub const RULEFS_INODES_MAX: usize = 4_096;
/// How often processes are looked for that hold what new rules forbid.
pub const REVOKE_ROUNDS_MAX: usize = 16;
/// How often a server is asked what it has refused, how long it may take to answer, and how many events may follow.
pub const REFUSALS_INTERVAL: Duration = Duration::from_secs(2);
pub const REFUSALS_ANSWER: Duration = Duration::from_secs(1);
pub const REFUSAL_EVENTS_MAX: usize = 8;
