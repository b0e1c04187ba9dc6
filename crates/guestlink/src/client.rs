//! The [`Guest`] of every local runtime: the guest protocol over the socket in the sandbox's home, or over connections
//! that the guest has dialed.
//!
//! One connection per operation, and nothing in between: a request is one connect and one send, its answer one wake-up.
//! There is no task and no pool, except for guests that dial.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use guest_proto::{
    Carrier, Exec, FRAME_MAX, FrameReader, FromGuest, ListedExec, OLDEST_VERSION, Op, PREFACE_LEN,
    ProgramSource, STDIN_FIRST, StdinMode, VERSION, encode, preface, read_preface,
};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};

use super::dial_back::{DialBack, Dialed, Proof};
use super::dialed::DialedStream;
use super::execution::{Accepted, GuestExecution};
use super::leaf::{Dispatch, HeldLeaves, Holder, Leaf, LeafPool};
use super::link::{Link, READ_LEN};
use super::program::{Program, TOOLBOX};
use super::shell::ShellUsers;
use super::source::Source;
use super::{
    ByteStream, ExecLimits, ExecRequest, Execution, Guest, GuestError, KnownExec, KnownShell,
    Offsets, Origin, ShellExecRequest, ShellRequest, Stdin,
};
use sandkeep_core::{ExecId, Privilege, ShellId, limits};

/// One per sandbox and daemon: it knows which leaves are in use (see `leaf`).
pub struct GuestClient {
    source: Source,
    carrier: Carrier,
    pub(super) pool: Arc<dyn LeafPool>,
    pub(super) leaves: Arc<HeldLeaves>,
    /// The newest version that the guest has not refused.
    version: AtomicU16,
    pub(super) shell_users: ShellUsers,
}

/// What is sent with a request.
#[derive(Clone, Copy)]
pub(super) enum Along<'a> {
    Nothing,
    /// The descriptors of a leaf.
    Leaf(&'a Dispatch),
    /// The file of a program.
    File(BorrowedFd<'a>),
    /// The bytes of a program, in frames after the request.
    Frames(&'a [u8]),
}

/// A request in progress: the connection, and the data received on it.
pub(super) struct Exchange {
    link: Link,
    reader: FrameReader,
    buffer: Box<[u8]>,
    /// The last descriptor received with the answer.
    descriptor: Option<OwnedFd>,
}

/// The result of starting a command.
enum Begun {
    Execution(Execution),
    /// It is a program that the guest does not have.
    NotKept,
}

impl GuestClient {
    /// `home` is the directory with the guest's socket, which need not accept connections yet.
    pub fn new(home: OwnedFd, pool: Arc<dyn LeafPool>) -> io::Result<Self> {
        Ok(Self::over(Source::socket(home)?, Carrier::Descriptor, pool))
    }

    /// For a guest that dials. `process` is the guest, or the process that it lives and dies with: when it is gone,
    /// waiting for connections ends. Must be called within the async runtime.
    pub fn dialed(
        dial_back: DialBack,
        process: OwnedFd,
        proof: Proof,
        pool: Arc<dyn LeafPool>,
    ) -> io::Result<Self> {
        let carrier = match proof {
            Proof::Process => Carrier::Descriptor,
            Proof::Token(_) => Carrier::Connection,
        };
        let source = Source::Dialed(Dialed::accept(dial_back, process, proof)?);
        Ok(Self::over(source, carrier, pool))
    }

    fn over(source: Source, carrier: Carrier, pool: Arc<dyn LeafPool>) -> Self {
        let version = AtomicU16::new(VERSION);
        let shell_users = ShellUsers::default();
        Self { source, carrier, pool, leaves: Arc::default(), version, shell_users }
    }

    /// How many connections were closed because they were not dialed by the guest.
    pub fn refused_dials(&self) -> u64 {
        match &self.source {
            Source::Socket { .. } => 0,
            Source::Dialed(dialed) => dialed.refused(),
        }
    }

    /// Sends a request and waits for the first message of the answer, in a common version.
    pub(super) async fn request(
        &self,
        op: &Op,
        along: Along<'_>,
        patience: Duration,
    ) -> Result<(Exchange, FromGuest), GuestError> {
        let deadline = Instant::now() + patience;
        let newest = self.version.load(Ordering::Relaxed);
        let oldest = op.since().max(OLDEST_VERSION);
        for version in (oldest..=newest).rev() {
            let answer = timeout_at(deadline, self.attempt(version, op, along))
                .await
                .map_err(|_| GuestError::TimedOut { after: patience })??;
            if let Some(answer) = answer {
                self.version.store(version, Ordering::Relaxed);
                return Ok(answer);
            }
        }
        Err(GuestError::Version { oldest, newest: VERSION })
    }

    /// `None` if the guest does not speak this version.
    async fn attempt(
        &self,
        version: u16,
        op: &Op,
        along: Along<'_>,
    ) -> Result<Option<(Exchange, FromGuest)>, GuestError> {
        let mut request = preface(version).to_vec();
        encode(op, &mut request);
        let descriptors = match along {
            Along::Nothing => Vec::new(),
            Along::Leaf(dispatch) => dispatch.leaf.fds(),
            Along::File(file) => vec![file],
            Along::Frames(frames) => {
                request.extend_from_slice(frames);
                Vec::new()
            }
        };
        let link = self.source.open(&request, &descriptors).await;
        let link = link.map_err(GuestError::Unreachable)?;
        if let Along::Leaf(dispatch) = along {
            dispatch.sent();
        }
        let mut exchange = Exchange::new(link);
        match exchange.greeting().await? {
            0 => Ok(None),
            answered if answered == version => {
                let message = exchange.message().await?;
                Ok(Some((exchange, message)))
            }
            answered => Err(GuestError::Protocol(format!(
                "it was asked for version {version} and answered in {answered}"
            ))),
        }
    }

    /// A request that is answered by one message.
    pub(super) async fn ask(&self, op: &Op) -> Result<FromGuest, GuestError> {
        let (_, answer) = self.request(op, Along::Nothing, limits::GUEST_ANSWER).await?;
        Ok(answer)
    }

    async fn ask_for_done(&self, op: &Op) -> Result<(), GuestError> {
        match self.ask(op).await? {
            FromGuest::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    async fn list(&self) -> Result<Vec<ListedExec>, GuestError> {
        match self.ask(&Op::List).await? {
            FromGuest::Execs(execs) => Ok(execs),
            other => Err(unexpected(other)),
        }
    }

    /// Starts a command, in a leaf of its own, with the request that `op` builds.
    async fn begin(
        &self,
        request: ExecRequest,
        op: impl FnOnce(Exec) -> Op,
    ) -> Result<Begun, GuestError> {
        let (id, stdin) = (request.id.clone(), request.stdin);
        let leaf = self.acquire(&request.limits)?;
        let exec = wire_request(request, &*leaf);
        if strings_len(&exec) > FRAME_MAX / 2 {
            return Err(GuestError::Refused { reason: "the command is too long".to_owned() });
        }
        let dispatch = Dispatch::new(self.leaves.clone(), &id, leaf);
        let answer = self.request(&op(exec), Along::Leaf(&dispatch), limits::GUEST_ANSWER).await;
        drop(dispatch);
        if let Ok((_, FromGuest::NotKept)) = &answer {
            self.leaves.give_back(&id);
            return Ok(Begun::NotKept);
        }
        let execution =
            answer.and_then(|answer| self.execution(id.clone(), stdin, Offsets::default(), answer));
        if let Err(GuestError::Refused { .. } | GuestError::Version { .. }) = &execution {
            self.leaves.give_back(&id);
        }
        execution.map(Begun::Execution)
    }

    pub(super) fn acquire(&self, limits: &ExecLimits) -> Result<Arc<dyn Leaf>, GuestError> {
        let unprepared = |source| GuestError::Unprepared { what: "a cgroup", source };
        Ok(self.pool.clone().acquire(limits).map_err(unprepared)?.into())
    }

    /// Transfers a program to the guest.
    async fn give(&self, program: &Program) -> Result<(), GuestError> {
        let name = program.name().map_err(no_program)?.to_owned();
        let frames;
        let (source, along) = match self.carrier {
            Carrier::Descriptor => {
                let file = program.file().map_err(no_program)?;
                (ProgramSource::Descriptor, Along::File(file))
            }
            Carrier::Connection => {
                frames = program.frames();
                (ProgramSource::Bytes { len: program.size_bytes() }, Along::Frames(&frames))
            }
        };
        let op = Op::Keep { program: name, source };
        match self.request(&op, along, limits::GUEST_ANSWER).await? {
            (_, FromGuest::Done) => Ok(()),
            (_, other) => Err(unexpected(other)),
        }
    }

    /// An earlier daemon started this exec: takes over its leaf. Without one its end is still reported, but not whether
    /// it ran out of memory.
    async fn adopt_leaf(&self, id: &ExecId) -> Result<(), GuestError> {
        let listed = self.list().await?;
        let Some(exec) = listed.into_iter().find(|exec| exec.exec_id == id.as_str()) else {
            return Err(GuestError::Refused { reason: format!("there is no exec {id}") });
        };
        match self.leaves.named(&exec.leaf_name) {
            // The leaf of a shell, in which earlier processes may have been killed.
            Some(leaf) => self.leaves.hold_from_now(id, leaf),
            None => self.adopt(id, &exec.leaf_name),
        }
        Ok(())
    }

    /// The execution of an exec whose guest is at the other end of this socket.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) async fn hear(
        &self,
        socket: std::os::unix::net::UnixStream,
    ) -> Result<Execution, GuestError> {
        let link = Link::over(socket).map_err(GuestError::Unreachable)?;
        let mut exchange = Exchange::new(link);
        exchange.greeting().await?;
        let answer = exchange.message().await?;
        self.execution(ExecId::random(), Stdin::Piped, Offsets::default(), (exchange, answer))
    }

    /// Takes over a leaf that an earlier daemon assigned.
    pub(super) fn adopt(&self, holder: impl Into<Holder>, name: &str) {
        let holder = holder.into();
        let held = self
            .leaves
            .named(name)
            .map_or_else(|| self.pool.clone().adopt(name).map(Arc::from), Ok);
        match held {
            Ok(leaf) => self.leaves.hold(holder, leaf),
            Err(error) => {
                tracing::warn!(?holder, leaf = name, %error, "cannot adopt the leaf");
            }
        }
    }

    /// Makes an execution of an exchange whose first message confirms it.
    pub(super) fn execution(
        &self,
        id: ExecId,
        stdin: Stdin,
        from: Offsets,
        (exchange, answer): (Exchange, FromGuest),
    ) -> Result<Execution, GuestError> {
        let Exchange { link, reader, buffer, descriptor: _ } = exchange;
        let mut told = None;
        let early_end = match answer {
            FromGuest::Started { pid, stdin_offset } => {
                told = Some(pid);
                if stdin == Stdin::Piped {
                    link.open_stdin(stdin_offset, stdin_offset.max(STDIN_FIRST as u64));
                }
                None
            }
            FromGuest::Ended(end) => Some(end),
            other => return Err(unexpected(other)),
        };
        let leaves = self.leaves.clone();
        Ok(Execution::over(GuestExecution::new(Accepted {
            id,
            link,
            reader,
            buffer,
            leaves,
            from,
            early_end,
        }))
        .with_pid(told))
    }
}

impl Exchange {
    fn new(link: Link) -> Self {
        let buffer = vec![0; READ_LEN].into_boxed_slice();
        Self { link, reader: FrameReader::new(), buffer, descriptor: None }
    }

    async fn receive(&mut self) -> Result<(), GuestError> {
        let Self { link, reader, buffer, descriptor } = self;
        match link.receive_with_descriptor(reader, buffer, descriptor).await {
            Ok(0) => Err(GuestError::Unreachable(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(()),
            Err(error) => Err(GuestError::Unreachable(error)),
        }
    }

    /// The version in the guest's answer; 0 is none.
    async fn greeting(&mut self) -> Result<u16, GuestError> {
        loop {
            if let Some(bytes) = self.reader.take_raw::<PREFACE_LEN>() {
                return read_preface(bytes).map_err(protocol);
            }
            self.receive().await?;
        }
    }

    /// The connection into the sandbox that the guest has just confirmed.
    fn stream(self, carrier: Carrier) -> Result<Box<dyn ByteStream>, GuestError> {
        match (carrier, self.descriptor) {
            (Carrier::Descriptor, Some(socket)) => {
                let stream = DialedStream::new(socket).map_err(|error| {
                    GuestError::Protocol(format!("it gave no connected socket: {error}"))
                })?;
                Ok(Box::new(stream))
            }
            (Carrier::Descriptor, None) => {
                Err(GuestError::Protocol("it dialed and gave no socket".to_owned()))
            }
            // The server's first bytes may have arrived with the answer.
            (Carrier::Connection, _) => {
                let begun = io::Cursor::new(self.reader.into_rest());
                let (read, write) = self.link.into_stream().into_split();
                Ok(Box::new(tokio::io::join(begun.chain(read), write)))
            }
        }
    }

    async fn message(&mut self) -> Result<FromGuest, GuestError> {
        loop {
            if let Some(message) = self.reader.next_message().map_err(protocol)? {
                return Ok(message);
            }
            self.receive().await?;
        }
    }
}

fn no_program(source: io::Error) -> GuestError {
    GuestError::Unprepared { what: "the toolbox", source }
}

fn protocol(error: guest_proto::DecodeError) -> GuestError {
    GuestError::Protocol(error.to_string())
}

pub(super) fn unexpected(answer: FromGuest) -> GuestError {
    match answer {
        FromGuest::Refused { reason } => GuestError::Refused { reason },
        FromGuest::Pong
        | FromGuest::Done
        | FromGuest::Execs(_)
        | FromGuest::Started { .. }
        | FromGuest::Stdout { .. }
        | FromGuest::Stderr { .. }
        | FromGuest::StdinWanted { .. }
        | FromGuest::Ended(_)
        | FromGuest::Dialed { .. }
        | FromGuest::PortClosed
        | FromGuest::ShellOpened(_)
        | FromGuest::Shells(_)
        | FromGuest::ShellEnded(_)
        | FromGuest::ShellRefused(_)
        | FromGuest::NotKept
        | FromGuest::ShellUsers(_) => {
            GuestError::Protocol("an answer to another question".to_owned())
        }
    }
}

#[async_trait]
impl Guest for GuestClient {
    async fn ping(&self) -> Result<(), GuestError> {
        match self.ask(&Op::Ping).await? {
            FromGuest::Pong => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    async fn exec(&self, request: ExecRequest) -> Result<Execution, GuestError> {
        let terminal = request.terminal;
        let op = move |exec| match terminal {
            None => Op::Exec(exec),
            Some(size) => Op::Terminal { exec, size },
        };
        match self.begin(request, op).await? {
            Begun::Execution(execution) => Ok(execution),
            Begun::NotKept => Err(unexpected(FromGuest::NotKept)),
        }
    }

    async fn exec_toolbox(&self, request: ExecRequest) -> Result<Execution, GuestError> {
        let program = &TOOLBOX;
        let name = program.name().map_err(no_program)?;
        let op = |exec| Op::ExecKept { program: name.to_owned(), exec };
        match self.begin(request.clone(), op).await? {
            Begun::Execution(execution) => return Ok(execution),
            // The first time in this sandbox.
            Begun::NotKept => self.give(program).await?,
        }
        match self.begin(request, op).await? {
            Begun::Execution(execution) => Ok(execution),
            Begun::NotKept => Err(unexpected(FromGuest::NotKept)),
        }
    }

    async fn attach(&self, id: &ExecId, from: Offsets) -> Result<Execution, GuestError> {
        if !self.leaves.holds(id) {
            self.adopt_leaf(id).await?;
        }
        let op = Op::Attach { exec_id: id.to_string(), from };
        let answer = self.request(&op, Along::Nothing, limits::GUEST_ANSWER).await?;
        let execution = self.execution(id.clone(), Stdin::Piped, from, answer);
        if let Err(GuestError::Refused { .. }) = execution {
            // The guest does not know the exec: it never started, or its end was collected.
            self.leaves.give_back(id);
        }
        execution
    }

    async fn signal(&self, id: &ExecId, signal: i32) -> Result<(), GuestError> {
        self.ask_for_done(&Op::Signal { exec_id: id.to_string(), signal }).await
    }

    async fn cancel(&self, id: &ExecId) -> Result<(), GuestError> {
        self.ask_for_done(&Op::Cancel { exec_id: id.to_string() }).await
    }

    async fn end(&self, id: &ExecId, grace: Duration) -> Result<(), GuestError> {
        self.ask_for_done(&Op::End {
            exec_id: id.to_string(),
            grace_ms: sandkeep_core::millis(grace),
        })
        .await
    }

    async fn execs(&self) -> Result<Vec<KnownExec>, GuestError> {
        let known = self.list().await?.into_iter().filter_map(|exec| {
            // An id in another format is not from a sandkeep, and is ignored.
            let id = exec.exec_id.parse().ok()?;
            // A request from here holds its leaf from before it is sent.
            let origin = if self.leaves.holds(&id) { Origin::Here } else { Origin::Earlier };
            Some(KnownExec { id, running: exec.running, origin })
        });
        Ok(known.collect())
    }

    async fn terminate(&self, grace: Duration) -> Result<(), GuestError> {
        let patience = grace.saturating_add(limits::GUEST_ANSWER);
        let op = Op::Terminate { grace_ms: sandkeep_core::millis(grace) };
        match self.request(&op, Along::Nothing, patience).await {
            Ok((_, FromGuest::Done)) => Ok(()),
            Ok((_, other)) => Err(unexpected(other)),
            // The answer is its last act, and it may be killed before: then everything has ended as well.
            Err(GuestError::Unreachable(error)) if is_cut(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn open_shell(&self, request: ShellRequest) -> Result<KnownShell, GuestError> {
        self.open(request).await
    }

    async fn shells(&self) -> Result<Vec<KnownShell>, GuestError> {
        self.list_shells().await
    }

    async fn exec_in_shell(&self, request: ShellExecRequest) -> Result<Execution, GuestError> {
        self.run_in_shell(request).await
    }

    async fn shell_user(&self, id: &ShellId) -> Option<String> {
        self.user_of(id).await
    }

    async fn close_shell(&self, id: &ShellId) -> Result<(), GuestError> {
        self.close(id).await
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn ByteStream>, GuestError> {
        let op = match self.carrier {
            Carrier::Descriptor => Op::Dial { port },
            Carrier::Connection => Op::DialThrough { port },
        };
        let (exchange, answer) = self.request(&op, Along::Nothing, limits::GUEST_ANSWER).await?;
        match answer {
            FromGuest::Dialed { carrier } if carrier == self.carrier => exchange.stream(carrier),
            FromGuest::Dialed { .. } => {
                Err(GuestError::Protocol("it dialed for another carrier".to_owned()))
            }
            FromGuest::PortClosed => Err(GuestError::PortClosed { port }),
            other => Err(unexpected(other)),
        }
    }
}

/// The connection was established and ended: the guest is gone.
fn is_cut(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

/// Default terminal type.
const TERMINAL_KIND: &str = "xterm-256color";

fn wire_request(mut request: ExecRequest, leaf: &dyn Leaf) -> Exec {
    if request.terminal.is_some() && !request.env.iter().any(|(name, _)| name == "TERM") {
        request.env.push(("TERM".to_owned(), TERMINAL_KIND.to_owned()));
    }
    Exec {
        exec_id: request.id.to_string(),
        argv: request.argv,
        env: request.env,
        cwd: request.cwd,
        user: request.user,
        stdin: wire_stdin(request.stdin),
        timeout_ms: request.timeout.map(sandkeep_core::millis),
        privilege: wire_privilege(request.privilege),
        leaf: leaf.kind(),
        leaf_name: leaf.name().to_owned(),
    }
}

pub(super) fn wire_stdin(stdin: Stdin) -> StdinMode {
    match stdin {
        Stdin::Null => StdinMode::Null,
        Stdin::Piped => StdinMode::Piped,
    }
}

pub(super) fn wire_privilege(privilege: Privilege) -> guest_proto::Privilege {
    match privilege {
        Privilege::None => guest_proto::Privilege::None,
        Privilege::Root => guest_proto::Privilege::Root,
    }
}

fn strings_len(exec: &Exec) -> usize {
    let argv: usize = exec.argv.iter().map(String::len).sum();
    let env: usize = exec.env.iter().map(|(name, value)| name.len() + value.len()).sum();
    argv + env + exec.cwd.as_ref().map_or(0, String::len) + exec.user.len()
}
