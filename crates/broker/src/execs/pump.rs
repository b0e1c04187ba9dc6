//! From the guest to the journal: takes the output of an exec.
//!
//! ```text
//!   PendingExec ── the journal exists, the exec is counted
//!     │ board(execution)
//!   Pump ─── every event: taken, journaled, and only then acknowledged to the guest
//! ```
//!
//! Every [`Execution`] is journaled this way. A pump is driven by the caller who waits for the command, which costs no
//! task and no hop, or, once nobody waits, by a task.

use std::sync::Arc;
use std::time::Duration;

use super::{Execs, admitted};
use crate::error::Error;
use crate::lifecycle::activity::Busy;
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::event::EventKind;
use sandkeep_core::failpoint;
use sandkeep_core::ledger::Over;
use sandkeep_guestlink::{
    ExecEnd, ExecEvent, Execution, ExecutionInput,
    journal::{Description, Journal, Writer},
};
use sandkeep_traces::{Step, Value, step};

/// The state of an exec before it runs.
pub(crate) struct PendingExec {
    pub shared: Arc<Shared>,
    pub execs: Arc<Execs>,
    pub writer: Writer,
    pub permit: Busy,
    /// What is told of the command, if anything.
    pub command: Option<Vec<String>>,
}

impl PendingExec {
    /// Counts an exec and creates its journal: the intent, before any effect. Refuses an exec that was admitted before
    /// a pause which did not count it.
    pub fn begin(
        shared: &Arc<Shared>,
        handle: &Handle,
        description: &Description,
    ) -> Result<Self, Error> {
        let execs = Arc::clone(&handle.execs);
        let permit = execs.place(&description.keep)?;
        let writer = begin(shared, handle, description)?;
        let command = shared.policy.told_command(&description.argv);
        let pending = Self { shared: Arc::clone(shared), execs, writer, permit, command };
        match admitted(handle) {
            Ok(_) => Ok(pending),
            Err(refused) => {
                pending.abandon();
                Err(refused)
            }
        }
    }

    /// The exec is running.
    pub fn board(self, execution: Execution) -> Pump {
        let Self { shared, execs, writer, permit, command: _ } = self;
        let journal = Arc::clone(writer.journal());
        let input = execution.input();
        execs.pids().extend(execution.pid().map(|pid| (journal.id().clone(), pid)));
        let step = step!("guest.exec", exec = %journal.id());
        let open = RunningExec { execution, writer, held: None, permit, step };
        Pump { shared, execs, journal, input, open: Some(open) }
    }

    /// The same of one that has begun only now.
    pub fn board_first(mut self, execution: Execution) -> Pump {
        let (exec, command) = (self.writer.journal().id().clone(), self.command.take());
        self.execs.emit(&self.shared, &EventKind::ExecStarted { exec, command });
        self.board(execution)
    }

    /// The exec never started.
    pub fn abandon(self) {
        self.execs.index.forget(self.writer);
    }

    /// The fate of the exec cannot be determined.
    pub fn lose(self, reason: &str) {
        let id = self.writer.journal().id().clone();
        let end = lost(reason);
        self.execs.tell_end(&self.shared, &id, &end);
        self.writer.end(end);
        self.execs.ended(&self.shared, &id);
    }
}

/// Creates a journal. If the owner's journal space is used up, journals of ended execs in the owner's other sandboxes
/// are removed.
fn begin(shared: &Shared, handle: &Handle, description: &Description) -> Result<Writer, Error> {
    loop {
        let refused = match handle.execs.index.begin(description) {
            Ok(writer) => return Ok(writer),
            Err(refused) => refused,
        };
        match refused.downcast::<Over>() {
            Ok(Over::Quota { whose, .. }) if shared.give_way(&handle.meta().owner, whose) => {}
            Ok(over) => return Err(over.into()),
            Err(source) => return Err(Error::Journal { source }),
        }
    }
}

pub(crate) struct Pump {
    shared: Arc<Shared>,
    execs: Arc<Execs>,
    journal: Arc<Journal>,
    input: ExecutionInput,
    /// `None` once the end is written.
    open: Option<RunningExec>,
}

struct RunningExec {
    execution: Execution,
    writer: Writer,
    /// An event that was taken but may not be in the journal yet.
    held: Option<ExecEvent>,
    permit: Busy,
    /// From its start to its end, for the trace of who started it.
    step: Step,
}

impl Pump {
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub fn execs(&self) -> &Arc<Execs> {
        &self.execs
    }

    /// The exec's stdin.
    pub fn input(&self) -> ExecutionInput {
        self.input.clone()
    }

    /// The next event, already journaled; `None` after `Ended`. Cancel-safe.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        let open = self.open.as_mut()?;
        if open.held.is_none() {
            let event = open.execution.next().await;
            open.held = Some(event.unwrap_or_else(|| ExecEvent::Ended(lost("it ended unseen"))));
        }
        match &open.held {
            Some(ExecEvent::Output { stream, offset, data }) => {
                open.writer.append(*stream, *offset, data).await;
                failpoint!("exec.after_output");
            }
            Some(ExecEvent::Ended(_)) => {
                open.writer.flush().await;
                failpoint!("exec.after_end");
            }
            Some(ExecEvent::Started | ExecEvent::Gap { .. }) | None => {}
        }
        match open.held.take() {
            Some(ExecEvent::Ended(end)) => Some(ExecEvent::Ended(self.end(end))),
            event => event,
        }
    }

    /// Writes the end, and returns it as written.
    fn end(&mut self, end: ExecEnd) -> ExecEnd {
        let Some(RunningExec { execution, writer, permit, step, .. }) = self.open.take() else {
            return end;
        };
        note(&step, &end);
        self.execs.tell_end(&self.shared, self.journal.id(), &end);
        let written = writer.end(end);
        failpoint!("exec.after_journal_end");
        // Now the guest may forget it.
        drop((execution, permit));
        self.execs.ended(&self.shared, self.journal.id());
        ExecEnd::clone(&written)
    }

    /// Takes all events until the exec ends or the broker shuts down.
    pub async fn run(mut self) {
        let closing = self.shared.closing.clone();
        let to_the_end = async { while self.next().await.is_some() {} };
        tokio::select! {
            () = closing.cancelled() => {}
            () = to_the_end => return,
        }
        // The next daemon reads the file, and must not find anybody writing it.
        if let Some(open) = &mut self.open {
            open.writer.flush().await;
        }
    }

    /// Hands an exec that may still be running to a task.
    pub fn leave(self) {
        // Outside of a Tokio runtime nothing can read any more: the process is exiting.
        if self.open.is_some() && tokio::runtime::Handle::try_current().is_ok() {
            let tasks = self.shared.tasks.clone();
            tasks.spawn(self.run());
        }
    }
}

/// How a command ended, for its trace.
fn note(step: &Step, end: &ExecEnd) {
    let (exit_code, signal) = end.outcome.numbers();
    if let Some(code) = exit_code {
        step.set("exit_code", || Value::Number(code.into()));
    }
    if let Some(signal) = signal {
        step.set("signal", || Value::Number(signal.into()));
    }
}

fn lost(reason: &str) -> ExecEnd {
    ExecEnd::lost(reason, Duration::ZERO)
}
