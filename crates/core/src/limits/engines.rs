//! Limits of what starts and ends sandboxes: container engines, launchers, external tools.

use std::time::Duration;

/// How long a container engine may take to answer, and to answer a ping.
pub const ENGINE_ANSWER: Duration = Duration::from_secs(60);
pub const ENGINE_IS_THERE: Duration = Duration::from_secs(5);
/// The largest answer of an engine: a list of as many containers as one daemon may have.
pub const ENGINE_ANSWER_MAX_BYTES: usize = 64 * 1024 * 1024;
/// How long an engine may take to notice that a container has ended or is gone, and how often it is polled.
pub const ENGINE_SETTLES: Duration = Duration::from_secs(30);
pub const ENGINE_LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How long to wait for the end of a killed sandbox before thawing it again: the guest may have frozen a process in its
/// last moment.
pub const KILL_LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long to wait until the kernel reports how a dead guest died.
pub const DEATH_TOLD: Duration = Duration::from_secs(1);

/// How long the launcher must be idle before it creates namespaces in advance.
pub const LAUNCHER_QUIET: Duration = Duration::from_millis(10);

/// How long to wait before starting a launcher again after a failure.
pub const LAUNCHER_RETRY: Duration = Duration::from_secs(1);

/// How long the launcher may take for one request.
pub const LAUNCHER_ANSWER: Duration = Duration::from_secs(10);

/// How long an external tool may take to start a guest: it may be the first of many on a busy machine.
pub const STAGE_ANSWER: Duration = Duration::from_secs(30);
/// How long to read the remaining output of a tool that ended.
pub const STAGE_LAST_WORDS: Duration = Duration::from_millis(500);
/// How much of a tool's output is kept; its last line is reported.
pub const STAGE_SAID_MAX_BYTES: usize = 4 * 1024;
/// How long a tool may take to print its version.
pub const TOOL_VERSION: Duration = Duration::from_secs(5);
