//! exec: run one command in a running sandbox. Execs go straight to the guest, concurrently with each other and with
//! the supervisor. They share a counter, an index of journals and the end of the sandbox.
//!
//! ```text
//!   exec ──▶ PendingExec (journal created) ──▶ sending ──▶ Pump ──▶ journal ──▶ watchers
//!                                         a later daemon: rejoin ──┘
//! ```

mod in_shell;
mod known;
mod own_limits;
mod place;
pub(crate) mod processes;
pub(crate) mod pump;
pub(crate) mod rejoin;
pub(crate) mod sending;
pub(crate) mod shells;
mod stdin;
mod terminals;
mod watching;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::Semaphore;

use super::lifecycle::handle::Handle;
use super::shared::Shared;
use crate::error::Error;
use crate::lifecycle::activity::{Activity, Busy};
use crate::lifecycle::supervisor::denied_error;
use sandkeep_core::event::{EventKind, Subject};
use sandkeep_core::ledger::Reservation;
use sandkeep_core::{
    ExecId, NamesOnly, Owner, Trigger, Verb, api::ExecLimits, apply, failpoint, limits,
};
use sandkeep_guestlink::{
    ExecEnd, ExecEvent, ExecRequest, ExecutionInput, Guest, OutputStream, Stdin, TerminalSize,
    journal::{
        Description, From, JOURNALS, Journal, JournalIndex, JournalLimits, Keep, StdinSource,
        Unfinished,
    },
};
use sandkeep_home::Home;
use sandkeep_traces::{step, within};

use pump::{PendingExec, Pump};
use rejoin::Awaited;
use stdin::Stdins;
use terminals::Terminals;
use watching::{DisconnectAction, DisconnectGuard};

pub(crate) use in_shell::{ShellCommand, exec_in_shell};
pub use known::{ExecPage, ExecView};
pub(crate) use own_limits::check as check_limits;
pub(crate) use place::{ExecContext, Wanted, as_asked};
pub use stdin::StdinTurn;
pub use watching::{Detached, ExecWatch};

/// Where a command finds the trace that it is part of, unless its environment says something else.
const TRACEPARENT: &str = "TRACEPARENT";

/// A command as requested, before validation.
#[derive(Clone, Default)]
pub struct ExecDraft {
    /// Empty for the command of the sandbox's image.
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub user: Option<String>,
    pub stdin: StdinSource,
    pub terminal: Option<TerminalSize>,
    pub timeout: Option<Duration>,
    pub limits: ExecLimits,
    pub on_disconnect: OnDisconnect,
    pub keep: Keep,
}

impl fmt::Debug for ExecDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecDraft")
            .field("argv", &self.argv)
            .field("env", &NamesOnly(&self.env))
            .field("cwd", &self.cwd)
            .field("user", &self.user)
            .field("stdin", &self.stdin)
            .field("terminal", &self.terminal)
            .field("timeout", &self.timeout)
            .field("limits", &self.limits)
            .field("on_disconnect", &self.on_disconnect)
            .field("keep", &self.keep)
            .finish()
    }
}

/// What happens to a command whose client disconnects before it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisconnect {
    #[default]
    GoOn,
    Kill,
    /// The command continues; its stdin is closed.
    CloseStdin,
}

/// The execs of one sandbox: how many may run, which journals exist, and which execs accept stdin.
pub(crate) struct Execs {
    pub activity: Arc<Activity>,
    pub index: JournalIndex,
    stdins: Stdins,
    terminals: Terminals,
    /// Pid, inside the sandbox, of the first process of each running exec.
    pids: Mutex<HashMap<ExecId, u32>>,
    /// One permit for each further watcher of the sandbox's files.
    pub onlookers: Arc<Semaphore>,
    /// The subject of their events; `None` if no events are published.
    pub subject: Option<Subject>,
    /// Execs of an earlier daemon that nobody has resumed yet.
    found: Mutex<Vec<Unfinished>>,
    /// Those of them that this daemon has not joined yet.
    awaited: Awaited,
    /// Those of them whose end it has told, and did not live to write.
    ends_told: Mutex<HashSet<ExecId>>,
}

impl Execs {
    pub fn new(
        home: &Home,
        journal: JournalLimits,
        account: Reservation,
        activity: Arc<Activity>,
        subject: Option<Subject>,
    ) -> Self {
        Self {
            activity,
            index: JournalIndex::new(&home.path().join(JOURNALS), journal, account),
            stdins: Stdins::default(),
            terminals: Terminals::default(),
            pids: Mutex::default(),
            onlookers: Arc::new(Semaphore::new(limits::FILE_WATCHES_MAX)),
            subject,
            found: Mutex::default(),
            awaited: Awaited::default(),
            ends_told: Mutex::default(),
        }
    }

    /// Takes a slot for one more exec of this kind.
    fn place(&self, keep: &Keep) -> Result<Busy, Error> {
        match keep {
            Keep::AmongTheLast => self.activity.begin_exec(),
            Keep::WithSandbox(_) => self.activity.begin_process(),
        }
    }

    /// The slot of an exec that an earlier daemon started.
    fn resumed(&self, keep: &Keep) -> Busy {
        match keep {
            Keep::AmongTheLast => self.activity.resume_exec(),
            Keep::WithSandbox(_) => self.activity.resume_process(),
        }
    }

    fn pids(&self) -> MutexGuard<'_, HashMap<ExecId, u32>> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn found(&self, unfinished: Vec<Unfinished>, told: &HashSet<ExecId>) {
        let ids = unfinished.iter().map(|unfinished| &unfinished.description.exec_id);
        self.awaited.begin(ids.clone().cloned().collect());
        let ends = ids.filter(|id| told.contains(*id)).cloned().collect();
        *self.ends_told.lock().unwrap_or_else(PoisonError::into_inner) = ends;
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = unfinished;
    }

    fn take_found(&self) -> Vec<Unfinished> {
        std::mem::take(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The unfinished state of one exec.
    fn take_found_of(&self, id: &ExecId) -> Option<Unfinished> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let at = found.iter().position(|unfinished| unfinished.description.exec_id == *id)?;
        Some(found.swap_remove(at))
    }

    fn emit(&self, shared: &Shared, kind: &EventKind) {
        if let Some(subject) = &self.subject {
            shared.emit(subject, kind);
        }
    }

    /// Publishes the end of an exec, unless an earlier daemon already did. This happens before the end is written: a
    /// daemon that finds no end checks whether it was published, and such execs are rare.
    fn tell_end(&self, shared: &Shared, id: &ExecId, end: &ExecEnd) {
        if self.ends_told.lock().unwrap_or_else(PoisonError::into_inner).remove(id) {
            return;
        }
        let (exit_code, signal) = end.outcome.numbers();
        let duration_ms = sandkeep_core::millis(end.duration);
        let (exec, status) = (id.clone(), end.outcome.status());
        self.emit(shared, &EventKind::ExecEnded { exec, status, exit_code, signal, duration_ms });
        failpoint!("exec.after_event");
    }

    /// Called when the end of an exec is written.
    fn ended(self: &Arc<Self>, shared: &Shared, id: &ExecId) {
        self.stdins.remove(id);
        self.terminals.remove(id);
        self.pids().remove(id);
        if self.index.count(id) && tokio::runtime::Handle::try_current().is_ok() {
            let execs = Arc::clone(self);
            shared.tasks.spawn_blocking(move || execs.index.tidy());
        }
    }

    pub fn journal(&self, id: &ExecId) -> Result<Arc<Journal>, Error> {
        self.index.find(id).ok_or_else(|| self.not_kept(id))
    }

    fn not_kept(&self, id: &ExecId) -> Error {
        let JournalLimits { max_execs, max_bytes, .. } = self.index.limits();
        Error::ExecNotFound { id: id.clone(), kept: max_execs, kept_bytes: max_bytes }
    }
}

/// An exec that its caller has just started. Dropping it lets the command continue, unless requested otherwise.
pub struct Running {
    pub id: ExecId,
    pub input: ExecutionInput,
    guest: Arc<dyn Guest>,
    leash: Option<DisconnectGuard>,
    /// `None` only during drop.
    pump: Option<Pump>,
}

impl Running {
    fn new(guest: Arc<dyn Guest>, pump: Pump, on_disconnect: OnDisconnect) -> Self {
        let (id, input) = (pump.journal().id().clone(), pump.input());
        let leash = match on_disconnect {
            OnDisconnect::GoOn => None,
            OnDisconnect::Kill => Some(DisconnectAction::Kill(Arc::clone(&guest))),
            OnDisconnect::CloseStdin => {
                Some(DisconnectAction::CloseStdin(Arc::clone(pump.execs())))
            }
        };
        let leash =
            leash.map(|w| DisconnectGuard::new(pump.shared(), Arc::clone(pump.journal()), w));
        Self { id, input, guest, leash, pump: Some(pump) }
    }

    /// The next event; `None` after `Ended`. The caller takes the output itself: a slow caller slows the command down
    /// and receives all of the output, even beyond the journal's capacity.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        self.pump.as_mut()?.next().await
    }

    /// Waits for the end, and passes on all output until then. Dropping the future leaves the command running, and its
    /// output in the journal.
    pub async fn collect<F: Future<Output = ()>>(
        mut self,
        mut take: impl FnMut(OutputStream, u64, Bytes) -> F,
    ) -> ExecEnd {
        while let Some(event) = self.next().await {
            match event {
                ExecEvent::Started | ExecEvent::Gap { .. } => {}
                ExecEvent::Output { stream, offset, data } => take(stream, offset, data).await,
                ExecEvent::Ended(end) => return end,
            }
        }
        ExecEnd::lost("its end was taken before", Duration::ZERO)
    }

    /// Reserves memory for an answer about this exec from the sandbox owner's quota.
    pub fn answer_space(&self) -> Reservation {
        let owner = self.pump().execs().subject.as_ref().map(|subject| subject.owner.clone());
        self.pump().shared().answers.open(&owner.unwrap_or_else(Owner::local))
    }

    fn pump(&self) -> &Pump {
        self.pump.as_ref().expect("it is there until it is dropped")
    }

    /// Keeps taking the output itself, so that the command waits for a slow client.
    pub fn attend(self) -> ExecWatch {
        let shared = Arc::clone(self.pump().shared());
        ExecWatch::of_caller(&shared, self)
    }

    /// Hands the reading to a task and follows the journal, like any other watcher.
    pub fn follow(mut self) -> ExecWatch {
        let (shared, journal) =
            (Arc::clone(self.pump().shared()), Arc::clone(self.pump().journal()));
        let leash = self.leash.take();
        drop(self);
        ExecWatch::new(&shared, journal.watch(From::start()), leash)
    }

    /// Signals the first process of the command.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        Ok(self.guest.signal(&self.id, signal).await?)
    }

    /// Kills the whole tree of the command.
    pub async fn cancel(&self) -> Result<(), Error> {
        Ok(self.guest.cancel(&self.id).await?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(pump) = self.pump.take() {
            pump.leave();
        }
    }
}

/// Admits a command, creates its journal, and starts it under this id, which no other exec of the sandbox has had.
pub(crate) async fn exec(
    shared: &Arc<Shared>,
    handle: &Handle,
    draft: ExecDraft,
    id: ExecId,
) -> Result<Running, Error> {
    if shared.closing.is_cancelled() {
        return Err(Error::ShuttingDown);
    }
    let admission = step!("admission");
    let guest = admitted(handle)?;
    let (source, keep, on_disconnect) = (draft.stdin, draft.keep.clone(), draft.on_disconnect);
    check_limits(&draft.limits, shared, &handle.meta().spec)?;
    let request = request(handle, draft, id)?;
    failpoint!("exec.after_admission");
    let description = Description {
        exec_id: request.id.clone(),
        argv: request.argv.clone(),
        cwd: request.cwd.clone(),
        user: as_asked(&request.user).to_owned(),
        started_at: Timestamp::now(),
        timeout_ms: request.timeout.map(sandkeep_core::millis),
        stdin: source,
        terminal: request.terminal.is_some(),
        keep,
        shell_id: None,
    };
    let pending = PendingExec::begin(shared, handle, &description)?;
    drop(admission);
    failpoint!("exec.after_journal");
    let answer = within(step!("guest.start"), guest.exec(request));
    let pump = sending::watch_over(&guest, &description.exec_id, answer, pending).await?;
    failpoint!("exec.after_start");
    if source == StdinSource::Open {
        handle.execs.stdins.open(description.exec_id.clone(), pump.input());
    }
    if description.terminal {
        handle.execs.terminals.open(description.exec_id, pump.input());
    }
    Ok(Running::new(guest, pump, on_disconnect))
}

/// The connection to the guest, if the sandbox is in a state that allows execs.
pub(crate) fn admitted(handle: &Handle) -> Result<Arc<dyn Guest>, Error> {
    let published = handle.published.borrow();
    apply(&published.status, Trigger::Begin(Verb::Exec))
        .map_err(|denied| denied_error(handle.id.clone(), denied))?;
    let unreachable = || {
        let reason = "its guest cannot be reached".to_owned();
        Error::SandboxFailed { id: handle.id.clone(), reason }
    };
    published.guest.clone().ok_or_else(unreachable)
}

/// The guest's request for a command. Its limits are those of the draft, unchecked.
pub(crate) fn request(
    handle: &Handle,
    mut draft: ExecDraft,
    id: ExecId,
) -> Result<ExecRequest, Error> {
    if draft.argv.is_empty() {
        draft.argv = place::own_command(&handle.meta().spec)?;
    }
    check(&draft)?;
    if let Some(place) = sandkeep_traces::current() {
        draft.env.entry(TRACEPARENT.to_owned()).or_insert_with(|| place.to_string());
    }
    if draft.terminal.is_some()
        && let Some((name, value)) = place::prompt(&handle.meta())
    {
        draft.env.entry(name).or_insert(value);
    }
    let wanted = Wanted { env: draft.env, cwd: draft.cwd, user: draft.user };
    let ExecContext { env, cwd, user } = ExecContext::of(&handle.meta(), wanted)?;
    let request = ExecRequest {
        id,
        argv: draft.argv,
        env,
        cwd,
        user,
        stdin: match draft.stdin {
            StdinSource::None => Stdin::Null,
            StdinSource::Given | StdinSource::Open => Stdin::Piped,
        },
        terminal: draft.terminal,
        timeout: draft.timeout,
        privilege: handle.meta().spec.privilege(),
        limits: draft.limits,
    };
    let env: usize = request.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    let argv: usize = request.argv.iter().map(|argument| argument.len() + 1).sum();
    let (size, max) = (argv + env, limits::EXEC_STRINGS_MAX_BYTES);
    if size <= max {
        Ok(request)
    } else {
        Err(invalid(
            "argv",
            format!(
                "with the environment it has {size} bytes, more than {max}; use a file or stdin"
            ),
        ))
    }
}

fn check(draft: &ExecDraft) -> Result<(), Error> {
    if draft.argv.first().is_none_or(String::is_empty) {
        return Err(invalid("argv", "it names no command".to_owned()));
    }
    if draft.argv.iter().any(|argument| argument.contains('\0')) {
        return Err(invalid("argv", "an argument holds NUL".to_owned()));
    }
    let max = limits::ARGUMENT_MAX_BYTES;
    if let Some(long) = draft.argv.iter().find(|argument| argument.len() > max) {
        let problem = format!(
            "an argument has {} bytes, more than the {max} that the kernel takes; send it as stdin",
            long.len()
        );
        return Err(invalid("argv", problem));
    }
    check_timeout(draft.timeout)
}

fn check_timeout(timeout: Option<Duration>) -> Result<(), Error> {
    match timeout {
        Some(Duration::ZERO) => Err(invalid("timeout_ms", "it is zero".to_owned())),
        Some(_) | None => Ok(()),
    }
}

fn invalid(field: &'static str, problem: String) -> Error {
    Error::InvalidField { field, problem }
}
