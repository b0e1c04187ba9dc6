//! Execs, and what they answer.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ShellFate;
use crate::{ExecId, ShellId};

/// An exec as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exec {
    pub exec_id: ExecId,
    /// Of its first process, inside the sandbox, while it runs; left out where the runtime does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// `running`, or how it ended: `exited`, `signaled`, `timed_out`, `canceled`, `oom_killed`, `lost`.
    #[schema(value_type = String)]
    pub status: ExecStatus,
    pub argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Left out only for a command of a shell whose guest is of an earlier version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// The shell whose command it is; then `argv` is the command alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell_id: Option<ShellId>,
    /// State of the shell after the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<ShellFate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// `none`, `given` with the request, or `open` for more; then `stdin_closed` says whether it still is.
    pub stdin: StdinSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_closed: Option<bool>,
    /// How many bytes an open stdin has been sent: after a restart of the daemon, how many had arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_bytes: Option<u64>,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// RFC 3339.
    #[schema(value_type = String)]
    pub started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub ended_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Number of bytes it printed, whether or not all of them are kept.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Whether some of it is not kept.
    pub truncated: bool,
    pub stdout_dropped_bytes: u64,
    pub stderr_dropped_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The limits of one command, for it and all that it starts. None is above the sandbox's own, which hold as well;
/// what is left out is limited by those alone. Needs a runtime with `exec_limits`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 8)]
    pub memory_mb: Option<u64>,
    /// How many processors' worth of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.01)]
    pub cpus: Option<f64>,
    /// Processes and threads at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4)]
    pub pids: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecStatus {
    Running,
    Exited,
    Signaled,
    TimedOut,
    Canceled,
    OomKilled,
    /// Nobody can know: the sandbox died, or the guest forgot.
    Lost,
}

impl ExecStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Signaled => "signaled",
            Self::TimedOut => "timed_out",
            Self::Canceled => "canceled",
            Self::OomKilled => "oom_killed",
            Self::Lost => "lost",
        }
    }
}

/// Where an exec's stdin comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StdinSource {
    /// It has none.
    #[default]
    None,
    /// It came with the request, whole.
    Given,
    /// It stays open for more until somebody closes it.
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// The answer to a blocking exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecAnswer {
    pub exec_id: ExecId,
    #[schema(value_type = String)]
    pub outcome: ExecStatus,
    #[serde(flatten)]
    pub ending: Ending,
    #[serde(flatten)]
    pub stdout: StdoutFields,
    #[serde(flatten)]
    pub stderr: StderrFields,
}

macro_rules! stream_fields {
    ($name:ident, $text:ident, $b64:ident, $omitted:ident, $at:ident) => {
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        pub struct $name {
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $text: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $b64: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $omitted: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $at: Option<u64>,
        }
    };
}

stream_fields!(StdoutFields, stdout, stdout_b64, stdout_omitted_bytes, stdout_omitted_at);
stream_fields!(StderrFields, stderr, stderr_b64, stderr_omitted_bytes, stderr_omitted_at);

/// How an exec ended, in the words of the API; both forms of the answer carry it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ending {
    /// `null` unless the command exited.
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub truncated: bool,
    pub duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// For a command of a shell: what became of the shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<ShellFate>,
    /// How much of what background jobs of the shell wrote before this command was thrown away.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stdout_skipped_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stderr_skipped_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
