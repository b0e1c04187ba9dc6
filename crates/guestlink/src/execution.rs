//! A running exec as its caller sees it: events out, stdin in.
//!
//! An event is acknowledged when the caller asks for the next one; the guest forgets the end when the caller asks again
//! or drops the execution. So a daemon that dies in between loses nothing: the next caller that attaches receives it
//! again.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use guest_proto::{FrameReader, FromGuest, How, OUTPUT_WINDOW, ToGuest};
use tokio::sync::mpsc;

use super::leaf::HeldLeaves;
use super::link::Link;
use super::{ExecEnd, ExecEvent, InShell, Offsets, Outcome, OutputStream, TerminalSize};
use sandkeep_core::ExecId;

/// With this interval the guest never waits for an acknowledgement, and small outputs need none.
const ACKNOWLEDGE_AFTER: u64 = (OUTPUT_WINDOW / 4) as u64;

/// The events of an exec, pulled one by one. Dropping it (and every [`ExecutionInput`]) detaches: the command
/// continues.
pub struct Execution {
    source: FrameSource,
    input: ExecutionInput,
    pid: Option<u32>,
}

enum FrameSource {
    Guest(Box<GuestExecution>),
    Channel { events: mpsc::Receiver<ExecEvent>, since: Instant, phase: ExecPhase },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExecPhase {
    /// `Started` was not delivered yet.
    New,
    Running,
    /// The end was delivered, and the guest has not forgotten it yet.
    Told,
    Over,
}

/// Input of an exec that does not use the guest protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Bytes(Bytes),
    End,
}

impl Execution {
    /// For runtimes without our guest: the other ends of these channels do the work. If `events` closes before an
    /// `Ended`, the exec is lost.
    pub fn from_channels(events: mpsc::Receiver<ExecEvent>, input: mpsc::Sender<Input>) -> Self {
        Self {
            source: FrameSource::Channel {
                events,
                since: Instant::now(),
                phase: ExecPhase::Running,
            },
            input: ExecutionInput { target: Target::Channel(input) },
            pid: None,
        }
    }

    /// The same with the pid of its first process inside.
    pub fn with_pid(self, pid: Option<u32>) -> Self {
        Self { pid, ..self }
    }

    /// The pid of its first process inside the sandbox, if the guest reports it.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    pub(super) fn over(guest: GuestExecution) -> Self {
        let input = ExecutionInput { target: Target::Guest(guest.link.clone()) };
        Self { source: FrameSource::Guest(Box::new(guest)), input, pid: None }
    }

    /// A handle for stdin; all handles of an exec are equivalent.
    pub fn input(&self) -> ExecutionInput {
        self.input.clone()
    }

    /// The next event; `None` after the one `Ended`. Cancel-safe: a dropped call loses nothing.
    ///
    /// Calling it again acknowledges the previous event. It must also be called for stdin to make progress.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        match &mut self.source {
            FrameSource::Guest(guest) => guest.next().await,
            FrameSource::Channel { events, since, phase } => {
                if *phase != ExecPhase::Running {
                    return None;
                }
                let event = events.recv().await.unwrap_or_else(|| {
                    ExecEvent::Ended(ExecEnd::lost("the runtime went away", since.elapsed()))
                });
                if let ExecEvent::Ended(_) = event {
                    *phase = ExecPhase::Over;
                }
                Some(event)
            }
        }
    }

    /// Waits for the end, and passes on all output until then.
    pub async fn collect(&mut self, mut take: impl FnMut(Bytes)) -> ExecEnd {
        while let Some(event) = self.next().await {
            match event {
                ExecEvent::Started | ExecEvent::Gap { .. } => {}
                ExecEvent::Output { data, .. } => take(data),
                ExecEvent::Ended(end) => return end,
            }
        }
        ExecEnd::lost("its end was taken before", Duration::ZERO)
    }
}

/// The stdin of an exec. Concurrent writes are interleaved in pieces.
#[derive(Clone)]
pub struct ExecutionInput {
    target: Target,
}

#[derive(Clone)]
enum Target {
    Guest(Arc<Link>),
    Channel(mpsc::Sender<Input>),
}

impl ExecutionInput {
    /// Sends all bytes, as fast as the command reads. `BrokenPipe` if stdin is closed or not piped, or the exec has
    /// ended. If the future is dropped, some prefix of the bytes was sent.
    pub async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        match &self.target {
            Target::Guest(link) => {
                while !bytes.is_empty() {
                    let count = link.write_stdin(bytes).await?;
                    bytes = &bytes[count..];
                }
                Ok(())
            }
            Target::Channel(input) => input
                .send(Input::Bytes(Bytes::copy_from_slice(bytes)))
                .await
                .map_err(|_| io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// How many bytes of stdin were sent since the exec started, by all daemons; `None` if stdin is closed, or its
    /// runtime cannot tell.
    pub fn position(&self) -> Option<u64> {
        match &self.target {
            Target::Guest(link) => link.stdin_sent(),
            Target::Channel(_) => None,
        }
    }

    /// Closes stdin after the written bytes; in a terminal, types the end-of-file key without hanging up. A second call
    /// does nothing.
    pub async fn close(&self) -> io::Result<()> {
        match &self.target {
            Target::Guest(link) => link.end_stdin().await,
            Target::Channel(input) => {
                // If nobody listens any more, the end does not matter.
                let _ = input.send(Input::End).await;
                Ok(())
            }
        }
    }

    /// Sets the terminal's size. Does nothing if the exec has no terminal.
    pub async fn resize(&self, size: TerminalSize) -> io::Result<()> {
        match &self.target {
            Target::Guest(link) => link.resize(size).await,
            Target::Channel(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// An exec behind the guest protocol.
pub(super) struct GuestExecution {
    id: ExecId,
    link: Arc<Link>,
    reader: FrameReader,
    buffer: Box<[u8]>,
    leaves: Arc<HeldLeaves>,
    since: Instant,
    phase: ExecPhase,
    stdout: StreamProgress,
    stderr: StreamProgress,
    /// An end that arrived before the start was delivered.
    early_end: Option<guest_proto::End>,
}

/// The progress of one stream.
#[derive(Clone, Copy, Debug, Default)]
struct StreamProgress {
    taken: u64,
    acknowledged: u64,
    /// Whether this connection has received output: the first may start later than requested.
    came: Came,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Came {
    #[default]
    Nothing,
    Some,
}

impl StreamProgress {
    fn at(offset: u64) -> Self {
        Self { taken: offset, acknowledged: offset, came: Came::Nothing }
    }

    /// Whether output may follow at this offset: without a gap, except for the first.
    fn fits(&self, offset: u64) -> bool {
        match self.came {
            Came::Some => offset == self.taken,
            Came::Nothing => offset >= self.taken,
        }
    }
}

/// The parts of a connection on which the guest has accepted an exec.
pub(super) struct Accepted {
    pub id: ExecId,
    pub link: Link,
    pub reader: FrameReader,
    pub buffer: Box<[u8]>,
    pub leaves: Arc<HeldLeaves>,
    pub from: Offsets,
    pub early_end: Option<guest_proto::End>,
}

impl GuestExecution {
    pub fn new(accepted: Accepted) -> Self {
        let Accepted { id, link, reader, buffer, leaves, from, early_end } = accepted;
        Self {
            id,
            link: Arc::new(link),
            reader,
            buffer,
            leaves,
            since: Instant::now(),
            phase: ExecPhase::New,
            stdout: StreamProgress::at(from.stdout),
            stderr: StreamProgress::at(from.stderr),
            early_end,
        }
    }

    async fn next(&mut self) -> Option<ExecEvent> {
        match self.phase {
            ExecPhase::New => {
                self.phase = ExecPhase::Running;
                return Some(ExecEvent::Started);
            }
            ExecPhase::Running => {}
            ExecPhase::Told => {
                self.forget();
                return None;
            }
            ExecPhase::Over => return None,
        }
        if let Some(end) = self.early_end.take() {
            return Some(self.end(end, None));
        }
        self.acknowledge();
        loop {
            match self.reader.next_message() {
                Ok(Some(message)) => match self.take(message) {
                    Some(event) => return Some(event),
                    None => continue,
                },
                Ok(None) => {}
                Err(error) => return Some(self.lose(error.to_string())),
            }
            match self.link.receive(&mut self.reader, &mut self.buffer).await {
                Ok(0) => return Some(self.lose("the guest closed the connection")),
                Ok(_) => {}
                Err(error) => return Some(self.lose(format!("the guest is gone: {error}"))),
            }
        }
    }

    fn take(&mut self, message: FromGuest) -> Option<ExecEvent> {
        match message {
            FromGuest::Stdout { offset, data } => {
                Some(self.output(OutputStream::Stdout, offset, data))
            }
            FromGuest::Stderr { offset, data } => {
                Some(self.output(OutputStream::Stderr, offset, data))
            }
            FromGuest::StdinWanted { up_to } => {
                self.link.want_stdin(up_to);
                None
            }
            FromGuest::Ended(end) => Some(self.end(end, None)),
            FromGuest::ShellEnded(shell) => {
                let end = shell.end.clone();
                Some(self.end(end, Some(shell.into())))
            }
            FromGuest::Pong
            | FromGuest::Refused { .. }
            | FromGuest::Done
            | FromGuest::Execs(_)
            | FromGuest::Started { .. }
            | FromGuest::Dialed { .. }
            | FromGuest::ShellOpened(_)
            | FromGuest::Shells(_)
            | FromGuest::ShellRefused(_)
            | FromGuest::ShellUsers(_)
            | FromGuest::NotKept
            | FromGuest::PortClosed => {
                Some(self.lose("the guest violated the protocol: an answer to another question"))
            }
        }
    }

    fn output(&mut self, stream: OutputStream, offset: u64, data: Vec<u8>) -> ExecEvent {
        let progress = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let Some(end) = offset.checked_add(data.len() as u64).filter(|_| progress.fits(offset))
        else {
            return self.lose("the guest violated the protocol: output out of order");
        };
        progress.came = Came::Some;
        progress.taken = end;
        ExecEvent::Output { stream, offset, data: data.into() }
    }

    /// The caller asked again, so it has the previous event.
    fn acknowledge(&mut self) {
        let due =
            |progress: &StreamProgress| progress.taken - progress.acknowledged >= ACKNOWLEDGE_AFTER;
        if due(&self.stdout) || due(&self.stderr) {
            self.stdout.acknowledged = self.stdout.taken;
            self.stderr.acknowledged = self.stderr.taken;
            let offsets = Offsets { stdout: self.stdout.taken, stderr: self.stderr.taken };
            self.link.say(&ToGuest::Ack(offsets));
        }
    }

    fn end(&mut self, end: guest_proto::End, shell: Option<InShell>) -> ExecEvent {
        self.phase = ExecPhase::Told;
        self.link.close_stdin();
        let outcome = match end.how {
            How::Exited(0) => Outcome::Exited(0),
            How::TimedOut => Outcome::TimedOut,
            How::Canceled => Outcome::Canceled,
            How::Exited(_) | How::Signaled(_) if self.leaves.oom_kills(&self.id) > 0 => {
                Outcome::OomKilled
            }
            How::Exited(code) => Outcome::Exited(code),
            How::Signaled(signal) => Outcome::Signaled(signal),
        };
        let duration = Duration::from_millis(end.duration_ms);
        ExecEvent::Ended(ExecEnd { error: end.error, shell, ..ExecEnd::new(outcome, duration) })
    }

    /// The leaf stays in use: the command may continue, watched by a newer connection.
    fn lose(&mut self, reason: impl Into<String>) -> ExecEvent {
        self.phase = ExecPhase::Over;
        self.link.close_stdin();
        ExecEvent::Ended(ExecEnd::lost(reason, self.since.elapsed()))
    }

    /// The caller has the end: the guest may forget it, and the leaf is free.
    fn forget(&mut self) {
        self.phase = ExecPhase::Over;
        self.link.say(&ToGuest::Forget);
        self.leaves.give_back(&self.id);
    }
}

impl Drop for GuestExecution {
    fn drop(&mut self) {
        if self.phase == ExecPhase::Told {
            self.forget();
        }
    }
}
