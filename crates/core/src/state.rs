//! The state machine of a sandbox, as one pure function: [`apply`].
//!
//! ```text
//!              Done(create)        pause
//!   creating ───────────────▶ running ⇄ paused
//!      │                       │  ▲  resume │
//!      │                  stop │  │ start   │ stop
//!      │                       ▼  │         │
//!      │                     stopped ◀──────┘
//!      │
//!      │    dies, or a verb fails       start, rollback
//!      │    running, paused, … ──▶ failed ───────▶ running
//!      │
//!      └──▶ destroying ◀── destroy, from anywhere, also in the middle of another verb
//!               │
//!               ▼ Done(destroy)
//!             (gone)
//! ```
//!
//! A record has a state and the operation in progress. The operation is written before its first side effect and
//! removed only with its outcome, so after a crash the record tells what was in progress. `creating` always has the
//! operation `create`, `destroying` always `destroy`, and nothing leads out of `destroying` but the end.
//!
//! A snapshot changes no state, and commands still start during it. It is an operation only because the sandbox is
//! frozen for a moment, and after a crash must be thawed. A rollback ends all processes and leads to `running` from
//! every state but `stopped`, which stays. Its record names the snapshot, because a rollback cannot be undone: a later
//! daemon finishes it.

mod found;

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::id::SnapshotId;
use crate::limits;
use found::{found, missing, rebooted};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Creating,
    Running,
    Paused,
    Stopped,
    Destroying,
    Failed,
}

impl State {
    pub const ALL: [Self; 6] = [
        Self::Creating,
        Self::Running,
        Self::Paused,
        Self::Stopped,
        Self::Destroying,
        Self::Failed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Destroying => "destroying",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The verbs of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    Create,
    Start,
    Stop,
    Pause,
    Resume,
    Destroy,
    Exec,
    /// Change its labels or timeouts.
    Amend,
    /// Make a template of it.
    Capture,
    Snapshot,
    Rollback,
    Fork,
    /// Restore some of its files.
    Revert,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Destroy => "destroy",
            Self::Exec => "exec",
            Self::Amend => "amend",
            Self::Capture => "capture",
            Self::Snapshot => "snapshot",
            Self::Rollback => "rollback",
            Self::Fork => "fork",
            Self::Revert => "revert",
        })
    }
}

/// A verb in progress. An exec is never one: execs run concurrently and change no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Create,
    Start,
    Stop,
    Pause,
    Resume,
    Snapshot,
    Rollback,
    Destroy,
}

impl From<Operation> for Verb {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Create => Self::Create,
            Operation::Start => Self::Start,
            Operation::Stop => Self::Stop,
            Operation::Pause => Self::Pause,
            Operation::Resume => Self::Resume,
            Operation::Snapshot => Self::Snapshot,
            Operation::Rollback => Self::Rollback,
            Operation::Destroy => Self::Destroy,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Verb::from(*self).fmt(f)
    }
}

/// Why a sandbox is in a state that was not requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// The host was rebooted since the sandbox last ran.
    HostRebooted,
    /// It died by itself or was killed from outside.
    Died { detail: String },
    /// A verb failed.
    VerbFailed { operation: Operation, detail: String },
    /// The daemon ended in the middle of a verb, which was then undone.
    Interrupted { operation: Operation },
    /// A restarted daemon found that it was no longer running.
    FoundDead,
    /// A part that it was created from is gone.
    Missing { detail: String },
    /// A timeout expired.
    Expired { expiry: Expiry },
}

/// Which of its two timeouts expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expiry {
    Timeout,
    Idle,
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "its timeout was over",
            Self::Idle => "it was idle for longer than its idle timeout",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostRebooted => f.write_str("host_rebooted"),
            Self::Died { detail } => write!(f, "died: {detail}"),
            Self::VerbFailed { operation, detail } => write!(f, "{operation} failed: {detail}"),
            Self::Interrupted { operation } => {
                write!(f, "{operation} was interrupted by the end of the daemon and undone")
            }
            Self::FoundDead => f.write_str("it ended while no daemon was watching"),
            Self::Missing { detail } => write!(f, "missing: {detail}"),
            Self::Expired { expiry } => expiry.fmt(f),
        }
    }
}

/// The lifecycle part of a sandbox's record. Only [`apply`] leads from one to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operation: Option<Operation>,
    /// The snapshot of a rollback in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rollback_to: Option<SnapshotId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
}

impl Status {
    /// The intent to create: the first record of every sandbox.
    pub fn creating() -> Self {
        Self { operation: Some(Operation::Create), ..Self::settled(State::Creating) }
    }

    /// A sandbox of which only the files are known, and they do not say that it runs.
    pub fn stopped() -> Self {
        Self::settled(State::Stopped)
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn operation(&self) -> Option<Operation> {
        self.operation
    }

    pub fn reason(&self) -> Option<&Reason> {
        self.reason.as_ref()
    }

    /// The snapshot of the rollback in progress.
    pub fn rollback_to(&self) -> Option<&SnapshotId> {
        self.rollback_to.as_ref()
    }

    fn settled(state: State) -> Self {
        Self { state, operation: None, rollback_to: None, reason: None }
    }

    fn settled_because(state: State, reason: Reason) -> Self {
        Self { reason: Some(reason), ..Self::settled(state) }
    }

    fn destroying(reason: Option<Reason>) -> Self {
        let operation = Some(Operation::Destroy);
        Self { operation, reason, ..Self::settled(State::Destroying) }
    }

    /// The same without its operation, which changed nothing.
    fn without_operation(&self) -> Self {
        Self { operation: None, rollback_to: None, ..self.clone() }
    }

    /// The same state with an operation started; the reason is kept until there is an outcome.
    fn with(&self, operation: Operation) -> Self {
        Self { operation: Some(operation), ..self.clone() }
    }
}

/// An input of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A verb is requested.
    Begin(Verb),
    /// A rollback to this snapshot is requested.
    RollBack(SnapshotId),
    /// The snapshot or rollback in progress has had no effect yet and will have none.
    CalledOff(Operation),
    /// The operation in progress has finished.
    Done(Operation),
    /// The operation in progress has failed.
    Failed(Operation, String),
    /// `wait` resolved.
    Died(String),
    /// A new daemon takes over: this is what the runtime reports.
    Found(Liveness),
    /// A new daemon takes over after a reboot of the host: nothing runs.
    HostRebooted,
    /// A new daemon takes over, and a part that the sandbox was created from is gone.
    Missing(String),
    /// A timeout expired, and this is to be done.
    Expired(Expiry, AtExpiry),
}

/// What happens to a sandbox at its timeout, if it is not destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtExpiry {
    Stop,
    Pause,
}

/// Whether a runtime reports that a sandbox runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    Running,
    NotRunning,
}

/// What the owner of the record must do with the status that [`apply`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: the status is unchanged, or the trigger has no meaning here.
    Stay,
    /// Write it: it is an outcome.
    Record,
    /// Write it, then execute the operation, then report `Done` or `Failed`.
    Carry(Operation),
    /// Remove the record: the sandbox is gone.
    Forget,
}

/// A trigger that is not legal in this state. Nothing changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("cannot {verb}: it is {state}")]
    WrongState { state: State, verb: Verb, helps: Option<Verb> },
    #[error("cannot {verb}: {under_way} is in progress")]
    Busy { verb: Verb, under_way: Verb },
    #[error("{0} is not in progress")]
    NotUnderWay(Operation),
}

/// The state machine.
pub fn apply(status: &Status, trigger: Trigger) -> Result<(Status, Next), Denied> {
    match trigger {
        Trigger::Begin(verb) => begin(status, verb),
        Trigger::RollBack(snapshot) => {
            let (status, next) = begin(status, Verb::Rollback)?;
            Ok((Status { rollback_to: Some(snapshot), ..status }, next))
        }
        Trigger::CalledOff(operation) => {
            under_way(status, operation)?;
            Ok((status.without_operation(), Next::Record))
        }
        Trigger::Done(operation) => {
            under_way(status, operation)?;
            Ok(done(status, operation))
        }
        Trigger::Failed(operation, detail) => {
            under_way(status, operation)?;
            Ok(failed(status, operation, clipped(detail)))
        }
        Trigger::Died(detail) => Ok(died(status, clipped(detail))),
        Trigger::Found(liveness) => Ok(found(status, liveness)),
        Trigger::HostRebooted => Ok(rebooted(status)),
        Trigger::Missing(detail) => Ok(missing(status, clipped(detail))),
        Trigger::Expired(expiry, what) => expired(status, expiry, what),
    }
}

/// A reason is part of the record, and a record that is too long could no longer be written.
fn clipped(mut detail: String) -> String {
    if detail.len() > limits::REASON_MAX_BYTES {
        detail.truncate(detail.floor_char_boundary(limits::REASON_MAX_BYTES));
        detail.push('…');
    }
    detail
}

fn begin(status: &Status, verb: Verb) -> Result<(Status, Next), Denied> {
    // Destroy comes first: it must succeed from every state, and a repeated one finishes the first.
    if verb == Verb::Destroy {
        let reason = status.reason.clone();
        return Ok((Status::destroying(reason), Next::Carry(Operation::Destroy)));
    }
    let wrong = |helps| Denied::WrongState { state: status.state, verb, helps };
    match (status.state, status.operation) {
        (State::Creating | State::Destroying, _) => return Err(wrong(None)),
        // It waits in the queue, or does not need to.
        (_, Some(_)) if verb == Verb::Fork => return Ok((status.clone(), Next::Stay)),
        // It starts before the freeze, or right after.
        (State::Running, Some(Operation::Snapshot)) if verb == Verb::Exec => {
            return Ok((status.clone(), Next::Stay));
        }
        (_, Some(operation)) => {
            return Err(Denied::Busy { verb, under_way: operation.into() });
        }
        (_, None) => {}
    }
    let carry = |operation| Ok((status.with(operation), Next::Carry(operation)));
    let stay = || Ok((status.clone(), Next::Stay));
    // A verb whose outcome is already reached is not an error: a caller that lost its answer may repeat it.
    match (verb, status.state) {
        (Verb::Start, State::Stopped | State::Failed) => carry(Operation::Start),
        (Verb::Stop, State::Running | State::Paused) => carry(Operation::Stop),
        (Verb::Pause, State::Running) => carry(Operation::Pause),
        (Verb::Resume, State::Paused) => carry(Operation::Resume),
        (Verb::Snapshot, _) => carry(Operation::Snapshot),
        (Verb::Rollback, _) => carry(Operation::Rollback),
        (Verb::Start | Verb::Resume | Verb::Exec, State::Running)
        | (Verb::Stop, State::Stopped)
        | (Verb::Pause, State::Paused)
        | (Verb::Capture, State::Running | State::Paused | State::Stopped)
        | (Verb::Revert, State::Running | State::Stopped)
        | (Verb::Amend | Verb::Fork, _) => stay(),
        (Verb::Start | Verb::Exec | Verb::Revert, State::Paused) => Err(wrong(Some(Verb::Resume))),
        (Verb::Stop | Verb::Pause | Verb::Resume | Verb::Exec, State::Stopped | State::Failed)
        | (Verb::Capture | Verb::Revert, State::Failed) => Err(wrong(Some(Verb::Start))),
        (Verb::Create | Verb::Destroy, _) | (_, State::Creating | State::Destroying) => {
            Err(wrong(None))
        }
    }
}

/// A stop or pause at a timeout: it proceeds like any other, with a reason.
fn expired(status: &Status, expiry: Expiry, what: AtExpiry) -> Result<(Status, Next), Denied> {
    let verb = match what {
        AtExpiry::Stop => Verb::Stop,
        AtExpiry::Pause => Verb::Pause,
    };
    let (status, next) = begin(status, verb)?;
    let reason = match next {
        Next::Carry(_) => Some(Reason::Expired { expiry }),
        Next::Stay | Next::Record | Next::Forget => status.reason,
    };
    Ok((Status { reason, ..status }, next))
}

fn under_way(status: &Status, operation: Operation) -> Result<(), Denied> {
    if status.operation == Some(operation) { Ok(()) } else { Err(Denied::NotUnderWay(operation)) }
}

fn done(status: &Status, operation: Operation) -> (Status, Next) {
    let state = match operation {
        Operation::Create | Operation::Start | Operation::Resume => State::Running,
        Operation::Stop => State::Stopped,
        Operation::Pause => State::Paused,
        Operation::Snapshot => return (status.without_operation(), Next::Record),
        Operation::Rollback => match status.state {
            State::Stopped => State::Stopped,
            State::Creating
            | State::Running
            | State::Paused
            | State::Destroying
            | State::Failed => State::Running,
        },
        Operation::Destroy => return (status.clone(), Next::Forget),
    };
    let reason = match (operation, &status.reason) {
        (Operation::Stop | Operation::Pause, Some(reason @ Reason::Expired { .. })) => {
            Some(reason.clone())
        }
        (Operation::Rollback, reason) if state == State::Stopped => reason.clone(),
        _ => None,
    };
    (Status { reason, ..Status::settled(state) }, Next::Record)
}

fn failed(status: &Status, operation: Operation, detail: String) -> (Status, Next) {
    let reason = Reason::VerbFailed { operation, detail };
    match operation {
        // No caller was promised this sandbox, so its parts are removed.
        Operation::Create => (Status::destroying(Some(reason)), Next::Carry(Operation::Destroy)),
        Operation::Start | Operation::Stop | Operation::Rollback => {
            (Status::settled_because(State::Failed, reason), Next::Record)
        }
        // The sandbox itself did not fail.
        Operation::Snapshot => (status.without_operation(), Next::Record),
        // Freezing and thawing are all or nothing: the state is as before.
        Operation::Pause | Operation::Resume => (Status::settled(status.state), Next::Record),
        // A recorded destroy is never undone; it is repeated.
        Operation::Destroy => (Status::destroying(Some(reason)), Next::Record),
    }
}

fn died(status: &Status, detail: String) -> (Status, Next) {
    match (status.state, status.operation) {
        // The operation itself causes, or detects, the death and reports it.
        (
            _,
            Some(
                Operation::Create
                | Operation::Start
                | Operation::Stop
                | Operation::Rollback
                | Operation::Destroy,
            ),
        ) => (status.clone(), Next::Stay),
        (State::Running | State::Paused, _) => {
            (Status::settled_because(State::Failed, Reason::Died { detail }), Next::Record)
        }
        (State::Creating | State::Stopped | State::Destroying | State::Failed, _) => {
            (status.clone(), Next::Stay)
        }
    }
}

#[cfg(test)]
mod tests;
