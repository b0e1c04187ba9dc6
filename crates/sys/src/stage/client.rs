//! The daemon's side of a stage: starts it, sends the request, receives the result.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::{ExitStatus, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::process::{Child, ChildStderr, Command};

use super::{BareStaging, Failure, MESSAGE_MAX_BYTES, Order, Staging};
use crate::{reactor, socket};
use sandkeep_core::limits;

/// Why no guest runs. Everything that was started is in the sandbox's cgroups.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error("could not {step}: {source}")]
    Failed {
        step: String,
        #[source]
        source: io::Error,
    },
    /// The tool failed; `said` is the last line it wrote.
    #[error("it ended with {status}: {said}")]
    Tool { status: ExitStatus, said: String },
    #[error("it came to no end within {} s", limits::STAGE_ANSWER.as_secs())]
    TimedOut,
}

impl StageError {
    fn during(step: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Failed { step: step.to_owned(), source }
    }
}

/// How to execute a stage: this program with the arguments that make it one.
#[derive(Clone, Debug)]
pub struct Stage {
    command: Vec<OsString>,
}

/// A tool that has finished, or has failed: no process starts a guest any more.
pub struct Tool {
    process: Child,
    said: Said,
}

impl Stage {
    pub fn new(command: Vec<OsString>) -> Self {
        Self { command }
    }

    /// Has a tool start a guest, and returns when the guest runs or no process is left that could start it.
    pub async fn perform(
        &self,
        staging: &Staging,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Tool, StageError> {
        self.order(&Order::Set(staging.clone()), fds).await
    }

    /// The same for a non-root stage.
    pub async fn perform_bare(
        &self,
        staging: &BareStaging,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Tool, StageError> {
        self.order(&Order::Bare(staging.clone()), fds).await
    }

    async fn order(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<Tool, StageError> {
        let performed = self.start(order, fds);
        match tokio::time::timeout(limits::STAGE_ANSWER, performed).await {
            Ok(performed) => performed,
            Err(_) => Err(StageError::TimedOut),
        }
    }

    async fn start(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<Tool, StageError> {
        let request = serde_json::to_vec(order)
            .map_err(|error| StageError::during("tell the stage")(error.into()))?;
        let (ours, mut process) = self.spawn().map_err(StageError::during("start a stage"))?;
        let mut said = Said::new(process.stderr.take());
        ours.async_io(Interest::WRITABLE, |fd| socket::send_with_fds(fd, &request, fds))
            .await
            .map_err(StageError::during("tell the stage"))?;
        let mut buffer = vec![0; MESSAGE_MAX_BYTES];
        let mut failure = None;
        loop {
            let heard = tokio::select! {
                heard = ours.async_io(Interest::READABLE, |fd| {
                    socket::receive_with_fds(fd, &mut buffer)
                }) => heard,
                () = said.more() => continue,
            };
            match heard.map_err(StageError::during("hear from the stage"))?.0 {
                0 => break,
                len => failure = serde_json::from_slice::<Failure>(&buffer[..len]).ok(),
            }
        }
        match failure {
            None => Ok(Tool { process, said }),
            Some(Failure { step, errno }) => {
                let source = io::Error::from_raw_os_error(errno);
                Err(StageError::Failed { step, source })
            }
        }
    }

    pub(super) fn spawn(&self) -> io::Result<(AsyncFd<OwnedFd>, Child)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let (program, arguments) = self.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let process = Command::new(program)
            .arg0("sandkeep-stage")
            .args(arguments)
            .env_clear()
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Until it is in the cgroups nothing else could find it.
            .kill_on_drop(true)
            .spawn()?;
        Ok((reactor::watch(ours, Interest::READABLE | Interest::WRITABLE)?, process))
    }
}

impl Tool {
    /// For a tool that ends when the guest runs: whether it reports success.
    pub async fn ended_well(mut self) -> Result<(), StageError> {
        match self.status().await? {
            status if status.success() => Ok(()),
            status => Err(self.gave_up(status).await),
        }
    }

    /// For a tool that stays behind unnecessarily: kills it.
    pub async fn dismiss(mut self) -> io::Result<()> {
        self.process.kill().await
    }

    /// Why there is no guest.
    pub async fn failure(mut self) -> StageError {
        match self.status().await {
            Ok(status) => self.gave_up(status).await,
            Err(error) => error,
        }
    }

    async fn status(&mut self) -> Result<ExitStatus, StageError> {
        match tokio::time::timeout(limits::STAGE_ANSWER, self.process.wait()).await {
            Ok(status) => status.map_err(StageError::during("wait for its end")),
            Err(_) => Err(StageError::TimedOut),
        }
    }

    async fn gave_up(mut self, status: ExitStatus) -> StageError {
        // Everything that it wrote is in the pipe by now; a process that it left behind may keep that open.
        let rest = async {
            while self.said.from.is_some() {
                self.said.more().await;
            }
        };
        let _ = tokio::time::timeout(limits::STAGE_LAST_WORDS, rest).await;
        StageError::Tool { status, said: self.said.last_line() }
    }
}

/// The end of a tool's stderr.
struct Said {
    /// `None` after its end.
    from: Option<ChildStderr>,
    tail: Vec<u8>,
}

impl Said {
    fn new(from: Option<ChildStderr>) -> Self {
        Self { from, tail: Vec::new() }
    }

    /// Waits for more, forever if there will be none.
    async fn more(&mut self) {
        let Some(from) = &mut self.from else { return std::future::pending().await };
        let mut chunk = [0; 1024];
        match from.read(&mut chunk).await {
            Ok(0) | Err(_) => self.from = None,
            Ok(len) => {
                self.tail.extend_from_slice(&chunk[..len]);
                let surplus = self.tail.len().saturating_sub(limits::STAGE_SAID_MAX_BYTES);
                self.tail.drain(..surplus);
            }
        }
    }

    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
        last.unwrap_or("it said nothing").to_owned()
    }
}
