//! The guest of a mock sandbox: execs that keep all their output until it is collected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::shell::{self, Exit, Stdio};
use sandkeep_core::{ExecId, limits};
use sandkeep_guestlink::{
    ExecEnd, ExecEvent, ExecLimits, ExecRequest, Execution, Guest, GuestError, Input, KnownExec,
    Offsets, Origin, Outcome, OutputStream, Stdin,
};

const SIGTERM: i32 = 15;

/// How a whole sandbox ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shutdown {
    /// Everything gets SIGTERM and is reported as such.
    Terminated,
    /// Nothing is left to report.
    Killed,
}

/// How a running exec is ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interruption {
    Cancel,
    Signal(i32),
    Shutdown(Shutdown),
}

pub(super) struct MockGuest {
    host_name: String,
    execs: Arc<Mutex<HashMap<ExecId, Arc<MockExec>>>>,
}

struct MockExec {
    log: watch::Sender<Log>,
    interruption: watch::Sender<Option<Interruption>>,
    /// Detaches the current watcher.
    watcher: Mutex<CancellationToken>,
}

/// All output of an exec.
#[derive(Default)]
struct Log {
    chunks: Vec<Chunk>,
    written: Offsets,
    end: Option<ExecEnd>,
}

#[derive(Clone)]
struct Chunk {
    stream: OutputStream,
    offset: u64,
    data: Bytes,
}

impl MockGuest {
    pub(super) fn new(host_name: String) -> Self {
        Self { host_name, execs: Arc::default() }
    }

    pub(super) fn shut_down(&self, how: Shutdown) {
        for exec in lock(&self.execs).values() {
            exec.interrupt(Interruption::Shutdown(how));
        }
    }

    fn known(&self, id: &ExecId) -> Result<Arc<MockExec>, GuestError> {
        let unknown = || GuestError::Refused { reason: format!("there is no exec {id}") };
        lock(&self.execs).get(id).cloned().ok_or_else(unknown)
    }

    /// Delivers the exec's output from the offsets on, and forgets it once everything was taken. An earlier watcher is
    /// detached.
    fn follow(
        &self,
        id: ExecId,
        exec: &MockExec,
        from: Offsets,
        stdin: mpsc::Sender<Input>,
    ) -> Execution {
        let (sender, receiver) = mpsc::channel(limits::EXEC_EVENTS_MAX);
        let log = exec.log.subscribe();
        let execs = Arc::clone(&self.execs);
        let replaced = exec.replace_watcher();
        tokio::spawn(async move {
            let taken = tokio::select! {
                biased;
                () = replaced.cancelled() => None,
                taken = hand_on(log, from, sender) => taken,
            };
            if taken.is_some() {
                lock(&execs).remove(&id);
            }
        });
        Execution::from_channels(receiver, stdin)
    }
}

impl MockExec {
    fn new() -> Self {
        Self {
            log: watch::Sender::default(),
            interruption: watch::Sender::default(),
            watcher: Mutex::default(),
        }
    }

    /// Registers a new watcher; the earlier one is detached.
    fn replace_watcher(&self) -> CancellationToken {
        let next = CancellationToken::new();
        std::mem::replace(&mut *lock(&self.watcher), next.clone()).cancel();
        next
    }

    /// The first interruption wins.
    fn interrupt(&self, interruption: Interruption) {
        self.interruption.send_if_modified(|current| match current {
            Some(_) => false,
            None => {
                *current = Some(interruption);
                true
            }
        });
    }

    fn say(&self, stream: OutputStream, data: Bytes) {
        self.log.send_modify(|log| {
            let written = match stream {
                OutputStream::Stdout => &mut log.written.stdout,
                OutputStream::Stderr => &mut log.written.stderr,
            };
            let offset = *written;
            *written += data.len() as u64;
            log.chunks.push(Chunk { stream, offset, data });
        });
    }

    async fn run(
        &self,
        host_name: String,
        request: ExecRequest,
        stdin: Option<mpsc::Receiver<Input>>,
    ) {
        let started = Instant::now();
        let mut interruption = self.interruption.subscribe();
        let stdio = Stdio { host_name, stdin, output: |stream, data| self.say(stream, data) };
        let (outcome, error) = tokio::select! {
            Exit { code, error } = shell::run(&request, stdio) => (Outcome::Exited(code), error),
            () = elapsed(request.timeout) => (Outcome::TimedOut, None),
            Ok(how) = interruption.wait_for(Option::is_some) => interrupted(*how),
        };
        let end = ExecEnd { error, ..ExecEnd::new(outcome, started.elapsed()) };
        self.log.send_modify(|log| log.end = Some(end));
    }
}

fn interrupted(how: Option<Interruption>) -> (Outcome, Option<String>) {
    match how {
        Some(Interruption::Cancel) => (Outcome::Canceled, None),
        Some(Interruption::Signal(signal)) => (Outcome::Signaled(signal), None),
        Some(Interruption::Shutdown(Shutdown::Terminated)) => (Outcome::Signaled(SIGTERM), None),
        Some(Interruption::Shutdown(Shutdown::Killed)) | None => {
            (Outcome::Lost, Some("the sandbox died".to_owned()))
        }
    }
}

async fn elapsed(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

/// Delivers the log as it grows; `Some` once its end was taken.
async fn hand_on(
    mut log: watch::Receiver<Log>,
    from: Offsets,
    sender: mpsc::Sender<ExecEvent>,
) -> Option<()> {
    sender.send(ExecEvent::Started).await.ok()?;
    let mut sent = 0;
    loop {
        let (chunks, end) = {
            let log = log.borrow_and_update();
            (log.chunks[sent..].to_vec(), log.end.clone())
        };
        sent += chunks.len();
        for chunk in chunks.into_iter().filter_map(|chunk| chunk.after(from)) {
            let Chunk { stream, offset, data } = chunk;
            sender.send(ExecEvent::Output { stream, offset, data }).await.ok()?;
        }
        if let Some(end) = end {
            sender.send(ExecEvent::Ended(end)).await.ok()?;
            return Some(());
        }
        tokio::select! {
            changed = log.changed() => changed.ok()?,
            () = sender.closed() => return None,
        }
    }
}

impl Chunk {
    /// The part at or after the offsets.
    fn after(mut self, from: Offsets) -> Option<Self> {
        let from = match self.stream {
            OutputStream::Stdout => from.stdout,
            OutputStream::Stderr => from.stderr,
        };
        let known = from.saturating_sub(self.offset).min(self.data.len() as u64);
        self.offset += known;
        // At most the length of a buffer in memory.
        self.data = self.data.slice(known as usize..);
        (!self.data.is_empty()).then_some(self)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics between two changes that belong together.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Guest for MockGuest {
    async fn ping(&self) -> Result<(), GuestError> {
        Ok(())
    }

    async fn exec(&self, request: ExecRequest) -> Result<Execution, GuestError> {
        if request.terminal.is_some() {
            return Err(GuestError::Unsupported { what: "open a terminal" });
        }
        if request.limits != ExecLimits::default() {
            return Err(GuestError::Unsupported { what: "limit a command" });
        }
        let (stdin, receiver) = mpsc::channel(limits::EXEC_EVENTS_MAX);
        let receiver = match request.stdin {
            Stdin::Null => None,
            Stdin::Piped => Some(receiver),
        };
        let id = request.id.clone();
        let exec = Arc::new(MockExec::new());
        lock(&self.execs).insert(id.clone(), Arc::clone(&exec));
        let execution = self.follow(id, &exec, Offsets::default(), stdin);
        let host_name = self.host_name.clone();
        tokio::spawn(async move { exec.run(host_name, request, receiver).await });
        Ok(execution)
    }

    async fn attach(&self, id: &ExecId, from: Offsets) -> Result<Execution, GuestError> {
        let exec = self.known(id)?;
        // A client that attaches only listens; the other end of its stdin is gone.
        let (stdin, _) = mpsc::channel(1);
        Ok(self.follow(id.clone(), &exec, from, stdin))
    }

    async fn signal(&self, id: &ExecId, signal: i32) -> Result<(), GuestError> {
        self.known(id)?.interrupt(Interruption::Signal(signal));
        Ok(())
    }

    async fn cancel(&self, id: &ExecId) -> Result<(), GuestError> {
        self.known(id)?.interrupt(Interruption::Cancel);
        Ok(())
    }

    async fn end(&self, id: &ExecId, _grace: Duration) -> Result<(), GuestError> {
        self.signal(id, SIGTERM).await
    }

    async fn execs(&self) -> Result<Vec<KnownExec>, GuestError> {
        let execs = lock(&self.execs);
        let known = |(id, exec): (&ExecId, &Arc<MockExec>)| KnownExec {
            id: id.clone(),
            running: exec.log.borrow().end.is_none(),
            // The mock lives and dies with its test, whichever broker uses it.
            origin: Origin::Earlier,
        };
        Ok(execs.iter().map(known).collect())
    }

    async fn terminate(&self, _grace: Duration) -> Result<(), GuestError> {
        self.shut_down(Shutdown::Terminated);
        Ok(())
    }
}
