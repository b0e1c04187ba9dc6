//! Runs of the toolbox: our program that works inside the sandbox, with the rights of its user.
//!
//! ```text
//!   begin ──▶ guest.exec_toolbox ──▶ Head(request) Data… End ──▶ toolbox
//!   head, data ◀── Head(answer) Data… End ◀───────────────────── toolbox
//! ```
//!
//! A run is an exec without a journal: it cannot be resumed, so nothing of it is kept. Its output goes straight to the
//! caller, with backpressure; a caller that disconnects ends it. All output is untrusted data of the sandbox: bounded
//! and typed.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::codec::{Decoder as _, LinesCodec};
use toolbox::{
    DATA_MAX, Decoder, Failure, FailureKind, Frame, HEAD_MAX, Operation, RawPath, Request, encode,
    encode_data,
};

use crate::error::Error;
use crate::execs::rejoin::collect;
use crate::execs::{ExecContext, Wanted, admitted, check_limits};
use crate::lifecycle::activity::Busy;
use crate::lifecycle::handle::Handle;
use crate::policy::slots::Slot;
use crate::shared::Shared;
use sandkeep_core::{ExecId, Privilege, Spec, api::ExecLimits, limits};
use sandkeep_guestlink::{
    ExecEnd, ExecEvent, ExecRequest, Execution, ExecutionInput, Guest, GuestError, Outcome,
    OutputStream, Stdin, TOOLBOX_NAME,
};
use sandkeep_traces::{Step, step};

/// The user that the toolbox runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    /// The default user of commands.
    User,
    /// With all rights that root has in this sandbox.
    Root,
}

/// A request to the toolbox.
pub(crate) struct ToolboxRequest {
    pub operation: Operation,
    pub whom: Whom,
    /// Limit from start to end; `None` if it runs as long as its caller stays connected.
    pub timeout: Option<Duration>,
    pub limits: ExecLimits,
    pub presence: Presence,
}

/// Whether data belongs to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    Nothing,
    /// A canceled request has to clean up, and gets a moment for that.
    Data,
}

impl Sends {
    fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Write(_) | Operation::Unpack(_) | Operation::Restore {} => Self::Data,
            Operation::Stat { .. }
            | Operation::Read { .. }
            | Operation::Remove { .. }
            | Operation::List(_)
            | Operation::MakeDirectory(_)
            | Operation::Move(_)
            | Operation::ChangeMode(_)
            | Operation::Watch { .. }
            | Operation::Pack { .. }
            | Operation::Tool(_)
            | Operation::Ports => Self::Nothing,
        }
    }
}

/// Whether the sandbox counts as in use while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Like any command: it is counted, and a pause waits for its end.
    Command,
    /// It only observes: it delays neither a timeout nor a pause.
    Onlooker,
}

impl ToolboxRequest {
    /// A short operation, as the sandbox's user.
    pub fn short(operation: Operation) -> Self {
        let timeout = Some(limits::TOOLBOX_SHORT);
        Self {
            operation,
            whom: Whom::User,
            timeout,
            limits: ExecLimits::default(),
            presence: Presence::Command,
        }
    }

    /// An operation that takes as long as its data, as the sandbox's user.
    pub fn long(operation: Operation) -> Self {
        Self { timeout: None, ..Self::short(operation) }
    }
}

/// A run of the toolbox. Dropping it ends it.
pub struct ToolboxRun {
    shared: Arc<Shared>,
    guest: Arc<dyn Guest>,
    id: ExecId,
    input: ToolboxInput,
    /// `None` only during drop.
    execution: Option<Execution>,
    decoder: Decoder,
    /// The end of its stderr: it writes there only if it fails in a way that it cannot report.
    complaint: Vec<u8>,
    state: State,
    sends: Sends,
    _place: RunPermit,
    _step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// All output was received.
    Over,
}

enum RunPermit {
    Command {
        _busy: Busy,
    },
    Onlooker {
        _permit: OwnedSemaphorePermit,
    },
    /// It works on a codebase, and in no sandbox.
    Jail {
        _slot: Slot,
    },
}

/// Starts a run, and sends its request.
pub(crate) async fn begin(
    shared: &Arc<Shared>,
    handle: &Arc<Handle>,
    request: ToolboxRequest,
) -> Result<ToolboxRun, Error> {
    if shared.closing.is_cancelled() {
        return Err(Error::ShuttingDown);
    }
    admitted(handle)?;
    let held = hold(handle, request.presence)?;
    // A request that was admitted before a pause which has not counted it yet is refused.
    let guest = admitted(handle)?;
    run(shared, guest, &handle.meta().spec, request, held).await
}

/// The same on the files of a codebase, in a jail.
pub(crate) async fn begin_in_jail(
    shared: &Arc<Shared>,
    jail: Arc<dyn Guest>,
    operation: Operation,
    timeout: Option<Duration>,
    slot: Slot,
) -> Result<ToolboxRun, Error> {
    let sends = Sends::of(&operation);
    let asked = encoded(&Request { base: None, operation })?;
    let request = ExecRequest {
        id: ExecId::random(),
        argv: vec![TOOLBOX_NAME.to_owned()],
        env: Default::default(),
        cwd: None,
        user: String::new(),
        stdin: Stdin::Piped,
        terminal: None,
        timeout,
        privilege: Privilege::None,
        limits: Default::default(),
    };
    start(shared, jail, (request, asked), sends, RunPermit::Jail { _slot: slot }).await
}

async fn run(
    shared: &Arc<Shared>,
    guest: Arc<dyn Guest>,
    spec: &Spec,
    request: ToolboxRequest,
    held: RunPermit,
) -> Result<ToolboxRun, Error> {
    let sends = Sends::of(&request.operation);
    check_limits(&request.limits, shared, spec)?;
    start(shared, guest, requests(spec, request)?, sends, held).await
}

async fn start(
    shared: &Arc<Shared>,
    guest: Arc<dyn Guest>,
    (request, asked): (ExecRequest, Vec<u8>),
    sends: Sends,
    held: RunPermit,
) -> Result<ToolboxRun, Error> {
    let shared = Arc::clone(shared);
    let tasks = shared.tasks.clone();
    let step = step!("guest.toolbox");
    // In a separate task: if the caller disconnects in between, the run is still known, and is ended.
    let started = tasks.spawn(async move {
        let id = request.id.clone();
        match guest.exec_toolbox(request).await {
            Ok(execution) => Ok(ToolboxRun {
                input: ToolboxInput(execution.input()),
                execution: Some(execution),
                decoder: Decoder::new(),
                complaint: Vec::new(),
                state: State::Running,
                _place: held,
                _step: step,
                shared,
                guest,
                id,
                sends,
            }),
            Err(error) => {
                if may_run(&error) {
                    let _ = guest.cancel(&id).await;
                }
                Err(error.into())
            }
        }
    });
    let mut run = started.await.unwrap_or(Err(Error::ShuttingDown))?;
    run.ask(asked).await?;
    Ok(run)
}

fn hold(handle: &Handle, presence: Presence) -> Result<RunPermit, Error> {
    match presence {
        Presence::Command => Ok(RunPermit::Command { _busy: handle.activity.begin_exec()? }),
        Presence::Onlooker => {
            let permit = Arc::clone(&handle.execs.onlookers).try_acquire_owned();
            let limit = limits::FILE_WATCHES_MAX;
            let reached =
                |_| Error::LimitReached { what: "watches of this sandbox's files", limit };
            handle.activity.touch();
            Ok(RunPermit::Onlooker { _permit: permit.map_err(reached)? })
        }
    }
}

/// The exec request for the guest, and the request for the toolbox.
fn requests(spec: &Spec, request: ToolboxRequest) -> Result<(ExecRequest, Vec<u8>), Error> {
    let user = match request.whom {
        Whom::User => None,
        // Numeric: the sandbox of an image may have no such name.
        Whom::Root => Some("0".to_owned()),
    };
    let privilege = match request.whom {
        Whom::User => spec.privilege(),
        Whom::Root => Privilege::Root,
    };
    let ExecContext { env, cwd, user } =
        ExecContext::fill(spec, Wanted { user, ..Wanted::default() })?;
    let base = cwd.map(|cwd| RawPath::from(cwd.as_str()));
    let head = encoded(&Request { base, operation: request.operation })?;
    let request = ExecRequest {
        id: ExecId::random(),
        argv: vec![TOOLBOX_NAME.to_owned()],
        env,
        // A missing working directory must not affect absolute paths.
        cwd: None,
        user,
        stdin: Stdin::Piped,
        terminal: None,
        timeout: request.timeout,
        privilege,
        limits: request.limits,
    };
    Ok((request, head))
}

fn encoded(request: &Request) -> Result<Vec<u8>, Error> {
    let asked = serde_json::to_vec(request);
    let asked = asked.map_err(|error| broke(format!("cannot ask it: {error}")))?;
    if asked.len() > HEAD_MAX {
        let problem = format!("it has {} bytes, more than {HEAD_MAX}", asked.len());
        return Err(Error::InvalidField { field: "request", problem });
    }
    let mut head = Vec::new();
    encode(&Frame::Head(asked), &mut head);
    Ok(head)
}

/// Whether the guest may have started it although it did not answer.
fn may_run(error: &GuestError) -> bool {
    matches!(
        error,
        GuestError::Unreachable(_) | GuestError::TimedOut { .. } | GuestError::Protocol(_)
    )
}

/// The input for a request's data.
#[derive(Clone)]
pub struct ToolboxInput(ExecutionInput);

impl ToolboxInput {
    /// Sends data, with backpressure. If the toolbox stops reading, its answer has the reason: that is not an error
    /// here.
    pub async fn send(&self, bytes: &[u8]) {
        let mut frame = Vec::new();
        for chunk in bytes.chunks(DATA_MAX) {
            frame.clear();
            encode_data(chunk, &mut frame);
            self.write(&frame).await;
        }
    }

    /// Ends the data. A request whose data is not ended is aborted, and changes nothing.
    pub async fn end(&self) {
        let mut frame = Vec::new();
        encode(&Frame::End, &mut frame);
        self.write(&frame).await;
        let _ = self.0.close().await;
    }

    async fn write(&self, bytes: &[u8]) {
        // It fails if the toolbox has ended, which the reader of the answer sees.
        let _ = self.0.write(bytes).await;
    }
}

impl ToolboxRun {
    /// The input for data, sent while [`answer_while`](Self::answer_while) waits for the answer.
    pub fn input(&self) -> ToolboxInput {
        self.input.clone()
    }

    async fn ask(&mut self, head: Vec<u8>) -> Result<(), Error> {
        let input = self.input.clone();
        // A guest takes stdin only while its output is read. Output that arrives meanwhile is buffered in the decoder.
        let mut sent = pin!(async move { input.write(&head).await });
        loop {
            tokio::select! {
                biased;
                () = &mut sent => return Ok(()),
                heard = self.hear() => match heard? {
                    Receiving::More => {}
                    Receiving::Ended => return Ok(()),
                },
            }
        }
    }

    /// The answer to a request without data.
    pub async fn answer<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let input = self.input();
        self.answer_while(async move {
            input.end().await;
            Ok(())
        })
        .await
    }

    /// The answer, while `sending` sends the request's data and its end. If `sending` fails, the run is ended and
    /// changes nothing inside.
    pub async fn answer_while<T, E>(
        &mut self,
        sending: impl Future<Output = Result<(), E>>,
    ) -> Result<T, E>
    where
        T: DeserializeOwned,
        E: From<Error>,
    {
        let mut sending = pin!(sending);
        let mut sent = SendProgress::NotAll;
        loop {
            tokio::select! {
                biased;
                frame = self.frame() => {
                    return match frame? {
                        Frame::Head(json) => Ok(parse(&json)?),
                        Frame::Data(_) | Frame::End | Frame::Failed(_) => {
                            Err(broke("it answered without an answer".to_owned()).into())
                        }
                    };
                }
                result = &mut sending, if sent == SendProgress::NotAll => {
                    result?;
                    sent = SendProgress::All;
                }
            }
        }
    }

    /// The next bytes after the answer; `None` at their regular end. Cancel-safe.
    pub async fn data(&mut self) -> Result<Option<Bytes>, Error> {
        match self.frame().await? {
            Frame::Data(bytes) => Ok(Some(bytes.into())),
            Frame::End => Ok(None),
            Frame::Head(_) | Frame::Failed(_) => Err(broke("it answered twice".to_owned())),
        }
    }

    /// The next frame; a failure is an error.
    async fn frame(&mut self) -> Result<Frame, Error> {
        loop {
            let frame = self.decoder.next_frame().map_err(|error| broke(error.to_string()))?;
            match frame {
                Some(Frame::Failed(json)) => {
                    self.state = State::Over;
                    return Err(failed(parse(&json)?));
                }
                Some(frame) => {
                    if frame == Frame::End {
                        self.state = State::Over;
                    }
                    return Ok(frame);
                }
                None if self.state == State::Over => {
                    return Err(broke("it has said all that it had to say".to_owned()));
                }
                None => {}
            }
            match self.hear().await? {
                Receiving::More => {}
                Receiving::Ended => return Err(broke("it ended in the middle".to_owned())),
            }
        }
    }

    /// Reads some more output. `Ended` if no more will come and some is left to be processed.
    async fn hear(&mut self) -> Result<Receiving, Error> {
        let Some(execution) = &mut self.execution else { return Ok(Receiving::Ended) };
        match execution.next().await {
            Some(ExecEvent::Output { stream: OutputStream::Stdout, data, .. }) => {
                self.decoder.feed(&data);
            }
            Some(ExecEvent::Output { stream: OutputStream::Stderr, data, .. }) => {
                let room = limits::TOOLBOX_COMPLAINT_MAX_BYTES.saturating_sub(self.complaint.len());
                self.complaint.extend_from_slice(&data[..data.len().min(room)]);
            }
            Some(ExecEvent::Started | ExecEvent::Gap { .. }) => {}
            Some(ExecEvent::Ended(end)) => {
                return if self.decoder.is_empty() {
                    Err(self.ended(end))
                } else {
                    Ok(Receiving::Ended)
                };
            }
            None => return Ok(Receiving::Ended),
        }
        Ok(Receiving::More)
    }

    /// It ended without a final frame.
    fn ended(&mut self, end: ExecEnd) -> Error {
        self.state = State::Over;
        let complaint = String::from_utf8_lossy(&self.complaint).trim().to_owned();
        match end.outcome {
            Outcome::Exited(126 | 127) if end.error.is_some() => {
                GuestError::Refused { reason: end.error.unwrap_or_default() }.into()
            }
            Outcome::TimedOut => failed(Failure::new(FailureKind::TimedOut, "it took too long")),
            Outcome::OomKilled => Error::ToolboxOutOfMemory,
            Outcome::Lost => {
                let cause = end.error.unwrap_or_default();
                GuestError::Unreachable(std::io::Error::other(cause)).into()
            }
            outcome @ (Outcome::Exited(_) | Outcome::Signaled(_) | Outcome::Canceled) => {
                broke(format!("it ended as {} without an answer: {complaint}", outcome.name()))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendProgress {
    NotAll,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    More,
    Ended,
}

impl Drop for ToolboxRun {
    /// Its end is collected, so that the guest releases it and its leaf is free again.
    fn drop(&mut self) {
        let Some(execution) = self.execution.take() else { return };
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (guest, id) = (Arc::clone(&self.guest), self.id.clone());
        let grace = match (self.state, self.sends) {
            (State::Over, _) => limits::TOOLBOX_END,
            (State::Running, Sends::Data) => limits::TOOLBOX_CLEAN_UP,
            (State::Running, Sends::Nothing) => Duration::ZERO,
        };
        let closing = self.shared.closing.clone();
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = collect(&*guest, &id, execution, Some(grace)) => {}
            }
        });
    }
}

/// The output of a run as lines of JSON.
pub(super) struct Lines {
    run: ToolboxRun,
    held: BytesMut,
    codec: LinesCodec,
}

impl Lines {
    pub fn of(run: ToolboxRun, line_max_bytes: usize) -> Self {
        let codec = LinesCodec::new_with_max_length(line_max_bytes);
        Self { run, held: BytesMut::new(), codec }
    }

    /// The next line; `None` at their regular end. Cancel-safe.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        loop {
            let line = self.codec.decode(&mut self.held).map_err(|e| broke(e.to_string()))?;
            if let Some(line) = line {
                return parse(line.as_bytes()).map(Some);
            }
            match self.run.data().await? {
                Some(bytes) => self.held.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(json).map_err(|error| broke(format!("it answered nonsense: {error}")))
}

fn broke(problem: String) -> Error {
    Error::ToolboxBroke { problem }
}

fn failed(failure: Failure) -> Error {
    let Failure { kind, mut message, path } = failure;
    // The text comes from the sandbox, and is cut to what fits an answer.
    message.truncate(message.floor_char_boundary(limits::FAILURE_MAX_BYTES));
    let path = path.map(|path| {
        let mut path = path.to_text_lossy();
        path.truncate(path.floor_char_boundary(limits::FILE_PATH_MAX_BYTES));
        path
    });
    Error::File { kind, path, message }
}
