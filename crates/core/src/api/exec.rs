//! Execs and their answers.

use std::borrow::Cow;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ShellFate;
use crate::{ExecId, ShellId};

/// An exec as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exec {
    pub id: ExecId,
    /// The same as `id`, under its former name.
    #[schema(deprecated, value_type = String)]
    pub exec_id: ExecId,
    /// Pid of its first process, inside the sandbox, while it runs; absent if the runtime does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// `running`, or how it ended.
    pub status: ExecStatus,
    pub argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Absent only for a command of a shell whose guest is of an earlier version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// The shell that runs it; then `argv` is the command alone.
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
    /// How many bytes were sent to an open stdin; after a restart of the daemon, how many had arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_bytes: Option<u64>,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// RFC 3339.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Number of bytes printed, whether or not all of them are kept.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Whether some of the output is not kept.
    pub truncated: bool,
    pub stdout_dropped_bytes: u64,
    pub stderr_dropped_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Limits of one command and all processes that it starts. None may exceed the sandbox's own limits, which apply as
/// well; a limit that is left out is the sandbox's. Needs a runtime with `exec_limits`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 8)]
    pub memory_mb: Option<u64>,
    /// CPU limit, in processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.01)]
    pub cpus: Option<f64>,
    /// Maximum number of processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4)]
    pub pids: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecStatus {
    Running,
    Exited,
    Signaled,
    TimedOut,
    Canceled,
    OomKilled,
    /// The outcome is unknown: the sandbox died, or the guest lost the exec.
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
    /// No stdin.
    #[default]
    None,
    /// Complete, with the request.
    Given,
    /// Open for more input until it is closed.
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// An event of a live exec, as a line of NDJSON or an event of SSE. The last one is `Running`, `Detached` or `Ended`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ExecEvent {
    Started {
        exec_id: ExecId,
    },
    /// These bytes of a stream were not kept.
    Gap {
        stream: OutputStream,
        from: u64,
        to: u64,
    },
    /// The exec is still running, and following was not requested.
    Running {
        exec_id: ExecId,
    },
    /// The daemon ends the stream; the exec continues.
    Detached {
        exec_id: ExecId,
        reason: Cow<'static, str>,
    },
    /// Bytes of a stream, starting at this offset.
    #[serde(untagged)]
    Output {
        #[serde(rename = "type")]
        stream: OutputStream,
        offset: u64,
        #[serde(flatten, with = "super::data")]
        data: Bytes,
    },
    #[serde(untagged)]
    Ended {
        #[serde(rename = "type")]
        status: ExecStatus,
        exec_id: ExecId,
        #[serde(flatten)]
        ending: Ending,
        stdout_bytes: u64,
        stderr_bytes: u64,
    },
}

impl ExecEvent {
    /// Its `type`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Gap { .. } => "gap",
            Self::Running { .. } => "running",
            Self::Detached { .. } => "detached",
            Self::Output { stream, .. } => stream.as_str(),
            Self::Ended { status, .. } => status.as_str(),
        }
    }

    pub fn is_last(&self) -> bool {
        matches!(self, Self::Running { .. } | Self::Detached { .. } | Self::Ended { .. })
    }
}

/// The answer to a blocking exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecAnswer {
    pub id: ExecId,
    /// The same as `id`, under its former name.
    #[schema(deprecated, value_type = String)]
    pub exec_id: ExecId,
    /// How it ended.
    pub status: ExecStatus,
    /// The same as `status`, under its former name.
    #[schema(deprecated)]
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

/// How an exec ended; part of both forms of the answer.
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
    /// For a command of a shell: the state of the shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<ShellFate>,
    /// Number of bytes, written by background jobs of the shell before this command, that were discarded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stdout_skipped_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stderr_skipped_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(event: &ExecEvent) -> String {
        let json = serde_json::to_string(event).expect("plain data");
        assert_eq!(serde_json::from_str::<ExecEvent>(&json).expect("its own words"), *event);
        json
    }

    #[test]
    fn each_event_is_read_as_it_is_written() {
        let id = ExecId::random;
        for event in [
            ExecEvent::Started { exec_id: id() },
            ExecEvent::Gap { stream: OutputStream::Stderr, from: 4, to: 9 },
            ExecEvent::Running { exec_id: id() },
            ExecEvent::Detached { exec_id: id(), reason: "removed".into() },
        ] {
            let json = written(&event);
            assert!(json.starts_with(&format!(r#"{{"type":"{}","#, event.name())), "{json}");
        }
        let exec_id = id();
        let ending = Ending {
            exit_code: None,
            signal: Some(9),
            truncated: false,
            duration_ms: 5,
            error: None,
            shell: None,
            stdout_skipped_bytes: 0,
            stderr_skipped_bytes: 0,
        };
        let status = ExecStatus::Signaled;
        let expected = format!(
            r#"{{"type":"signaled","exec_id":"{exec_id}","exit_code":null,"signal":9,"truncated":false,"duration_ms":5,"stdout_bytes":3,"stderr_bytes":0}}"#
        );
        let ended = ExecEvent::Ended { status, exec_id, ending, stdout_bytes: 3, stderr_bytes: 0 };
        assert_eq!(written(&ended), expected);
    }

    #[test]
    fn text_is_written_as_it_is_and_other_bytes_in_base64() {
        let output = |data: &'static [u8]| ExecEvent::Output {
            stream: OutputStream::Stdout,
            offset: 7,
            data: data.into(),
        };
        let text = written(&output("h€\n".as_bytes()));
        assert_eq!(text, r#"{"type":"stdout","offset":7,"data":"h€\n"}"#);
        let bytes = written(&output(b"\xff"));
        assert_eq!(bytes, r#"{"type":"stdout","offset":7,"data_b64":"/w=="}"#);
    }

    proptest! {
        #[test]
        fn any_bytes_survive(data in prop::collection::vec(any::<u8>(), 0..300), offset: u64) {
            let stream = OutputStream::Stderr;
            written(&ExecEvent::Output { stream, offset, data: data.into() });
        }
    }
}
