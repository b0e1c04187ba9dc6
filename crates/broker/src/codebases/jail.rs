//! The toolbox in its jail, as a guest that knows nothing but the toolbox: so its runs are read like those inside a
//! sandbox. One process per operation; it ends with its reader, or with the daemon.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use sandkeep_core::{ExecId, limits};
use sandkeep_guestlink::{
    ExecEnd, ExecEvent, ExecRequest, Execution, Guest, GuestError, Input, KnownExec, Offsets,
    Outcome, OutputStream,
};
use sandkeep_sys::jail;

/// This program itself; see [`jail`].
const PROGRAM: &str = "/proc/self/exe";

/// The files of one codebase, for one operation.
pub struct Jail {
    pub tree: PathBuf,
    /// The owner of its files on the disk.
    pub owner: u32,
    pub cancelled: CancellationToken,
}

impl Jail {
    fn spawn(&self) -> std::io::Result<Child> {
        Command::new(PROGRAM)
            .arg0("sandkeep-files")
            .args(jail::arguments(&self.tree, self.owner))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }

    fn unsupported<T>() -> Result<T, GuestError> {
        Err(GuestError::Unsupported { what: "do anything but work on files" })
    }
}

#[async_trait]
impl Guest for Jail {
    async fn ping(&self) -> Result<(), GuestError> {
        Ok(())
    }

    async fn exec(&self, _: ExecRequest) -> Result<Execution, GuestError> {
        Self::unsupported()
    }

    async fn exec_toolbox(&self, request: ExecRequest) -> Result<Execution, GuestError> {
        let child =
            self.spawn().map_err(|error| GuestError::Refused { reason: error.to_string() })?;
        let (events, receiver) = mpsc::channel(limits::EXEC_EVENTS_MAX);
        let (input, inputs) = mpsc::channel(limits::EXEC_EVENTS_MAX);
        let running =
            Running { events, cancelled: self.cancelled.clone(), timeout: request.timeout };
        tokio::spawn(running.follow(child, inputs));
        Ok(Execution::from_channels(receiver, input))
    }

    async fn attach(&self, _: &ExecId, _: Offsets) -> Result<Execution, GuestError> {
        Self::unsupported()
    }

    async fn signal(&self, _: &ExecId, _: i32) -> Result<(), GuestError> {
        Self::unsupported()
    }

    async fn cancel(&self, _: &ExecId) -> Result<(), GuestError> {
        self.cancelled.cancel();
        Ok(())
    }

    async fn end(&self, id: &ExecId, grace: Duration) -> Result<(), GuestError> {
        tokio::time::sleep(grace).await;
        self.cancel(id).await
    }

    async fn execs(&self) -> Result<Vec<KnownExec>, GuestError> {
        Ok(Vec::new())
    }

    async fn terminate(&self, _: Duration) -> Result<(), GuestError> {
        self.cancelled.cancel();
        Ok(())
    }
}

/// How a process goes on until its end.
struct Running {
    events: mpsc::Sender<ExecEvent>,
    cancelled: CancellationToken,
    timeout: Option<Duration>,
}

impl Running {
    async fn follow(self, mut child: Child, inputs: mpsc::Receiver<Input>) {
        let began = Instant::now();
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feeding = tokio::spawn(feed(stdin, inputs));
        let events = &self.events;
        let read = async {
            tokio::join!(
                pass_on(stdout, OutputStream::Stdout, events),
                pass_on(stderr, OutputStream::Stderr, events),
            );
        };
        let late = async {
            match self.timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            () = read => None,
            () = self.cancelled.cancelled() => Some(Outcome::Canceled),
            // Nobody reads what it says.
            () = events.closed() => Some(Outcome::Canceled),
            () = late => Some(Outcome::TimedOut),
        };
        feeding.abort();
        if ended.is_some() {
            // It may have ended by itself.
            let _ = child.start_kill();
        }
        let outcome = match (ended, child.wait().await) {
            (Some(outcome), _) => outcome,
            (None, Ok(status)) => {
                use std::os::unix::process::ExitStatusExt as _;
                let signal = status.signal().map(Outcome::Signaled);
                signal.unwrap_or(Outcome::Exited(status.code().unwrap_or_default()))
            }
            (None, Err(_)) => Outcome::Lost,
        };
        let _ = self.events.send(ExecEvent::Ended(ExecEnd::new(outcome, began.elapsed()))).await;
    }
}

/// Writes to its stdin until the end of the input, which closes it.
async fn feed(stdin: Option<ChildStdin>, mut inputs: mpsc::Receiver<Input>) {
    let Some(mut stdin) = stdin else { return };
    while let Some(Input::Bytes(bytes)) = inputs.recv().await {
        // If it has stopped reading, its answer says why.
        if stdin.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = stdin.shutdown().await;
}

async fn pass_on(
    from: Option<impl AsyncRead + Unpin>,
    stream: OutputStream,
    events: &mpsc::Sender<ExecEvent>,
) {
    let Some(mut from) = from else { return };
    let (mut offset, mut buffer) = (0, vec![0; limits::CODEBASE_WORK_PIECE_BYTES]);
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let data = Bytes::copy_from_slice(&buffer[..count]);
        if events.send(ExecEvent::Output { stream, offset, data }).await.is_err() {
            return;
        }
        offset += count as u64;
    }
}
