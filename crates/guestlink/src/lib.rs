//! What can be done inside a sandbox, and the host's side of the guest protocol that does it for
//! every local runtime ([`GuestClient`]). A runtime elsewhere implements [`Guest`] over whatever it has. All that comes
//! from a guest is untrusted: bounded, typed, timed.
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

/// One command to run. The host builds the whole environment; nothing is inherited.
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
    /// What it may use by itself, within the sandbox's own limits. A runtime without `exec_limits` refuses any.
    pub limits: ExecLimits,
}

/// In a terminal `Null` means that nobody types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    Null,
    Piped,
}

/// One event of an exec: `Started`, then output in order of arrival, then one `Ended`. The guest's client, the
/// journal and every watcher speak of an exec in these; only a door encodes them.
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

/// How an exec ended; a journal holds it in this form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    pub outcome: Outcome,
    /// Why it could not be started, or why the outcome is what it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(rename = "duration_ms", with = "millis")]
    pub duration: Duration,
    pub ended_at: Timestamp,
    /// How much it said, as its journal counted it; zero before that.
    pub written: Offsets,
    /// How much of that is not in the journal.
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

    /// Nobody can know how it ended.
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
    /// Nobody can know: the sandbox died, or the guest forgot.
    Lost,
}

impl Outcome {
    /// The same without its number, as the API says it.
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

    /// The exit code, or the signal, of one that has either.
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
    /// Nothing was begun.
    #[error("cannot prepare {what} for the exec")]
    Unprepared {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// Nothing was begun, and never will be: the runtime has no such thing.
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

/// A connection to a process of the sandbox. Shutting its writing half down tells the process the end;
/// the other half goes on.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// # Behavior
/// - Operations run side by side.
/// - Dropping an [`Execution`] does not end the command: it goes on, and blocks once its output
///   window is full, until somebody attaches again.
#[async_trait]
pub trait Guest: Send + Sync {
    /// A round trip to the guest's own loop.
    async fn ping(&self) -> Result<(), GuestError>;

    /// Starts a command. A command that cannot be started is no error here: it ends as exited 127
    /// or 126 with `error` set.
    async fn exec(&self, request: ExecRequest) -> Result<Execution, GuestError>;

    /// Starts our toolbox, by which the broker works on the files of a sandbox, whether or not the sandbox has a file
    /// of it. From then on it is an exec like any other. Without it the verbs for files and the tools are refused.
    async fn exec_toolbox(&self, request: ExecRequest) -> Result<Execution, GuestError> {
        let _ = request;
        Err(GuestError::Unsupported { what: "run the toolbox, which works on files" })
    }

    /// Joins a known exec; its output from the offsets on follows, byte for byte. What an earlier
    /// watcher has acknowledged is gone: then it starts later, and the first offset says where.
    /// Whoever watched before is cut off, as `Lost`.
    async fn attach(&self, id: &ExecId, from: Offsets) -> Result<Execution, GuestError>;

    /// Signals the first process of an exec.
    async fn signal(&self, id: &ExecId, signal: i32) -> Result<(), GuestError>;

    /// Kills the whole tree of an exec; it ends as `Canceled`.
    async fn cancel(&self, id: &ExecId) -> Result<(), GuestError>;

    /// Ends the whole tree of an exec: SIGTERM to all of it, `grace`, SIGKILL to what is left. Answers when
    /// the signals are sent; the guest goes on by itself. The exec ends when nothing of its tree is left: as
    /// its first process did, or as `Canceled` if that had to be killed.
    async fn end(&self, id: &ExecId, grace: Duration) -> Result<(), GuestError>;

    async fn execs(&self) -> Result<Vec<KnownExec>, GuestError>;

    /// Ends every process of the sandbox, and the guest with them: SIGTERM, `grace`, SIGKILL.
    async fn terminate(&self, grace: Duration) -> Result<(), GuestError>;

    /// Opens a persistent shell and waits until it is ready. `Refused` if it cannot be had.
    /// Only of a runtime with `shells`, as the four below.
    async fn open_shell(&self, request: ShellRequest) -> Result<KnownShell, GuestError> {
        let _ = request;
        Err(GuestError::Unsupported { what: "keep shells" })
    }

    /// All shells, those that have ended included, until they are closed. They outlive the daemon.
    async fn shells(&self) -> Result<Vec<KnownShell>, GuestError> {
        Ok(Vec::new())
    }

    /// Gives a shell a command; it runs when those before it are over. From then on it is an exec like
    /// any other: it can be attached to, signaled (what the command has started, not the shell) and
    /// canceled, and its end says what became of the shell.
    async fn exec_in_shell(&self, request: ShellExecRequest) -> Result<Execution, GuestError> {
        Err(GuestError::ShellNotFound { id: request.shell })
    }

    /// Who a shell runs as. `None` if it is not there, or its guest is too old to tell.
    async fn shell_user(&self, id: &ShellId) -> Option<String> {
        let _ = id;
        None
    }

    /// Kills a shell with all that runs in it, and forgets it.
    async fn close_shell(&self, id: &ShellId) -> Result<(), GuestError> {
        Err(GuestError::ShellNotFound { id: id.clone() })
    }

    /// Connects to a TCP port of the sandbox's loopback, whatever its network is. `PortClosed` at
    /// once if nobody listens. Nothing is sent or closed on the way: the bytes are the caller's. Only of a runtime
    /// with `ports`.
    async fn dial(&self, port: u16) -> Result<Box<dyn ByteStream>, GuestError> {
        let _ = port;
        Err(GuestError::Unsupported { what: "be connected to by port" })
    }
}
