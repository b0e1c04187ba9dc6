//! The operations inside a sandbox, and the host's side of the guest protocol that implements them for every local
//! runtime ([`GuestClient`]). A remote runtime implements [`Guest`] in its own way. All data from a guest is untrusted:
//! bounded, typed, timed.
//!
//! ```
//! use sandkeep_guestlink::{ExecEvent, ExecRequest, Guest, GuestError, Outcome};
//!
//! async fn outcome(guest: &dyn Guest, request: ExecRequest) -> Result<Outcome, GuestError> {
//!     let mut execution = guest.exec(request).await?;
//!     while let Some(event) = execution.next().await {
//!         if let ExecEvent::Ended(end) = event {
//!             return Ok(end.outcome);
//!         }
//!     }
//!     Ok(Outcome::Lost)
//! }
//! ```

mod client;
mod dial_back;
mod dialed;
mod execution;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod journal;
pub mod leaf;
mod link;
mod program;
mod shell;
mod source;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use sandkeep_core::{ExecId, Privilege, ShellId};

pub use client::GuestClient;
pub use dial_back::{DialBack, DialToken, Proof};
pub use execution::{Execution, ExecutionInput, Input};
pub use guest_proto::{Offsets, TerminalSize};
pub use program::TOOLBOX_NAME;
pub use sandkeep_core::api::{
    ExecLimits, ExecStatus, OutputStream, ShellFate, ShellProgram, ShellState,
};
pub use shell::{InShell, KnownShell, ShellExecRequest, ShellRequest};

/// A command to run. The host builds the whole environment; nothing is inherited.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecRequest {
    pub id: ExecId,
    /// Never empty.
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: Option<String>,
    /// As in the guest protocol's `Exec`.
    pub user: String,
    pub stdin: Stdin,
    /// A terminal of this size instead of pipes: all output is then stdout.
    pub terminal: Option<TerminalSize>,
    pub timeout: Option<Duration>,
    pub privilege: Privilege,
    /// Its own limits, within the sandbox's. A runtime without `exec_limits` refuses any.
    pub limits: ExecLimits,
}

/// In a terminal, `Null` means no keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    Null,
    Piped,
}

/// One event of an exec: `Started`, then output in order of arrival, then one `Ended`. The guest's client, the journal
/// and every watcher use these events; only a door encodes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEvent {
    Started,
    Output {
        stream: OutputStream,
        offset: u64,
        data: Bytes,
    },
    /// Bytes that the journal does not have (any more). A guest has no gaps.
    Gap {
        stream: OutputStream,
        from: u64,
        to: u64,
    },
    Ended(ExecEnd),
}

/// How an exec ended; stored in a journal in this form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    pub outcome: Outcome,
    /// Why it could not be started, or why the outcome is what it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(rename = "duration_ms", with = "millis")]
    pub duration: Duration,
    pub ended_at: Timestamp,
    /// The amount of output, as counted by its journal; zero before that.
    pub written: Offsets,
    /// The part of it that is not in the journal.
    pub dropped: Offsets,
    /// For a command of a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<InShell>,
}

impl ExecEnd {
    /// It ended now.
    pub fn new(outcome: Outcome, duration: Duration) -> Self {
        Self {
            outcome,
            error: None,
            duration,
            ended_at: Timestamp::now(),
            written: Offsets::default(),
            dropped: Offsets::default(),
            shell: None,
        }
    }

    /// Its outcome is unknown.
    pub fn lost(reason: impl Into<String>, duration: Duration) -> Self {
        Self { error: Some(reason.into()), ..Self::new(Outcome::Lost, duration) }
    }
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        sandkeep_core::millis(*duration).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// Every exec ends with exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Exited(i32),
    Signaled(i32),
    TimedOut,
    Canceled,
    OomKilled,
    /// The outcome is unknown: the sandbox died, or the guest lost the exec.
    Lost,
}

impl Outcome {
    /// The same without its number, as in the API.
    pub fn status(&self) -> ExecStatus {
        match self {
            Self::Exited(_) => ExecStatus::Exited,
            Self::Signaled(_) => ExecStatus::Signaled,
            Self::TimedOut => ExecStatus::TimedOut,
            Self::Canceled => ExecStatus::Canceled,
            Self::OomKilled => ExecStatus::OomKilled,
            Self::Lost => ExecStatus::Lost,
        }
    }

    /// The exit code, or the signal, if it has one.
    pub fn numbers(&self) -> (Option<i32>, Option<i32>) {
        match self {
            Self::Exited(code) => (Some(*code), None),
            Self::Signaled(signal) => (None, Some(*signal)),
            Self::TimedOut | Self::Canceled | Self::OomKilled | Self::Lost => (None, None),
        }
    }

    pub fn name(&self) -> &'static str {
        self.status().as_str()
    }
}

/// An exec that the guest knows: running, or ended and not yet collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownExec {
    pub id: ExecId,
    pub running: bool,
    pub origin: Origin,
}

/// Who started an exec, as far as this side can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This daemon, which may be watching it.
    Here,
    /// An earlier daemon: nobody watches it.
    Earlier,
}

#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The sandbox is gone or going.
    #[error("the guest is not reachable")]
    Unreachable(#[source] std::io::Error),
    #[error("the guest did not answer within {} s", after.as_secs())]
    TimedOut { after: Duration },
    #[error("the guest speaks no protocol version from {oldest} to {newest}")]
    Version { oldest: u16, newest: u16 },
    #[error("the guest violated the protocol: {0}")]
    Protocol(String),
    #[error("the guest refused: {reason}")]
    Refused { reason: String },
    /// Nothing was started.
    #[error("cannot prepare {what} for the exec")]
    Unprepared {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// Nothing was started, and never will be: the runtime does not support it.
    #[error("sandboxes of this runtime cannot {what}")]
    Unsupported { what: &'static str },
    #[error("nothing listens on port {port} of the sandbox")]
    PortClosed { port: u16 },
    #[error("there is no shell {id}")]
    ShellNotFound { id: ShellId },
    #[error("shell {id} has ended")]
    ShellEnded { id: ShellId },
    #[error("shell {id} already has {limit} commands or 4 MiB queued")]
    ShellQueueFull { id: ShellId, limit: usize },
    #[error("the sandbox already has {limit} shells")]
    TooManyShells { limit: usize },
}

/// A connection to a process of the sandbox. Shutting down its writing half signals the end to the process; the other
/// half continues.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// # Behavior
/// - Operations run concurrently.
/// - Dropping an [`Execution`] does not end the command: it continues, and blocks once its output window is full, until
///   a client attaches again.
#[async_trait]
pub trait Guest: Send + Sync {
    /// A round trip to the guest's own loop.
    async fn ping(&self) -> Result<(), GuestError>;

    /// Starts a command. Failure to start is not an error here: it ends as exited 127 or 126 with `error` set.
    async fn exec(&self, request: ExecRequest) -> Result<Execution, GuestError>;

    /// Starts our toolbox, which the broker uses for a sandbox's files, whether or not the sandbox contains a file of
    /// it. From then on it is an exec like any other. Without it, file operations and file tools are refused.
    async fn exec_toolbox(&self, request: ExecRequest) -> Result<Execution, GuestError> {
        let _ = request;
        Err(GuestError::Unsupported { what: "run the toolbox, which works on files" })
    }

    /// Attaches to a known exec; its output from the offsets on follows, byte for byte. Output that an earlier watcher
    /// has acknowledged is gone: then it starts later, at the first reported offset. An earlier watcher is cut off, as
    /// `Lost`.
    async fn attach(&self, id: &ExecId, from: Offsets) -> Result<Execution, GuestError>;

    /// Signals the first process of an exec.
    async fn signal(&self, id: &ExecId, signal: i32) -> Result<(), GuestError>;

    /// Kills the whole tree of an exec; it ends as `Canceled`.
    async fn cancel(&self, id: &ExecId) -> Result<(), GuestError>;

    /// Ends the whole tree of an exec: SIGTERM to all of it, `grace`, SIGKILL to the rest. Returns when the signals are
    /// sent; the guest continues by itself. The exec ends when its whole tree is gone: with the outcome of its first
    /// process, or as `Canceled` if that had to be killed.
    async fn end(&self, id: &ExecId, grace: Duration) -> Result<(), GuestError>;

    async fn execs(&self) -> Result<Vec<KnownExec>, GuestError>;

    /// Ends every process of the sandbox, and the guest with them: SIGTERM, `grace`, SIGKILL.
    async fn terminate(&self, grace: Duration) -> Result<(), GuestError>;

    /// Opens a persistent shell and waits until it is ready. `Refused` if that is impossible. Only for a runtime with
    /// `shells`, like the four below.
    async fn open_shell(&self, request: ShellRequest) -> Result<KnownShell, GuestError> {
        let _ = request;
        Err(GuestError::Unsupported { what: "keep shells" })
    }

    /// All shells, including ended ones, until they are closed. They outlive the daemon.
    async fn shells(&self) -> Result<Vec<KnownShell>, GuestError> {
        Ok(Vec::new())
    }

    /// Queues a command in a shell; it runs after the earlier ones. From then on it is an exec like any other: it can
    /// be attached to, signaled (the processes that the command has started, not the shell) and canceled, and its end
    /// has the state of the shell.
    async fn exec_in_shell(&self, request: ShellExecRequest) -> Result<Execution, GuestError> {
        Err(GuestError::ShellNotFound { id: request.shell })
    }

    /// The user of a shell. `None` if it does not exist, or its guest is too old to tell.
    async fn shell_user(&self, id: &ShellId) -> Option<String> {
        let _ = id;
        None
    }

    /// Kills a shell with all its processes, and forgets it.
    async fn close_shell(&self, id: &ShellId) -> Result<(), GuestError> {
        Err(GuestError::ShellNotFound { id: id.clone() })
    }

    /// Connects to a TCP port of the sandbox's loopback, whatever its network is. `PortClosed` at once if nobody
    /// listens. Nothing is added to the bytes of the caller. Only for a runtime with `ports`.
    async fn dial(&self, port: u16) -> Result<Box<dyn ByteStream>, GuestError> {
        let _ = port;
        Err(GuestError::Unsupported { what: "be connected to by port" })
    }
}
