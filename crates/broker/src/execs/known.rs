//! Verbs for existing execs: get, watch, write stdin, signal, cancel.

use std::sync::Arc;
use std::time::Duration;

use super::stdin::StdinTurn;
use super::watching::{DisconnectAction, DisconnectGuard, ExecWatch};
use super::{Execs, OnDisconnect, admitted};
use crate::Broker;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::{
    ExecId, Principal, SandboxId,
    api::{ExecStatus, Order},
    limits,
};
use sandkeep_guestlink::{
    Guest, GuestError, OutputStream, TerminalSize,
    journal::{Description, From, Journal, Progress, StdinSource},
};

pub use sandkeep_core::api::Exec as ExecView;

/// Some of a sandbox's execs, oldest first.
pub struct ExecPage {
    pub items: Vec<ExecView>,
    /// The last one of this page, if there are more.
    pub next: Option<ExecId>,
}

fn shown(description: Description, progress: &Progress, execs: &Execs) -> ExecView {
    let stdins = &execs.stdins;
    let id = &description.exec_id;
    let open = (description.stdin == StdinSource::Open)
        .then(|| stdins.is_open(id) || execs.awaited.contains(id));
    let stdin_bytes = stdins.position(id);
    let end = progress.end.as_deref();
    let (exit_code, signal) = end.map_or((None, None), |end| end.outcome.numbers());
    let (written, dropped) = (progress.written, progress.dropped);
    ExecView {
        pid: if end.is_none() { execs.pids().get(id).copied() } else { None },
        id: description.exec_id.clone(),
        exec_id: description.exec_id,
        status: end.map_or(ExecStatus::Running, |end| end.outcome.status()),
        argv: description.argv,
        cwd: description.cwd,
        user: description.user,
        shell_id: description.shell_id,
        shell: end.and_then(|end| Some(end.shell?.fate)),
        timeout_ms: description.timeout_ms,
        stdin: description.stdin,
        stdin_closed: open.map(|open| !open),
        stdin_bytes,
        terminal: description.terminal,
        started_at: description.started_at,
        ended_at: end.map(|end| end.ended_at),
        exit_code,
        signal,
        duration_ms: end.map(|end| sandkeep_core::millis(end.duration)),
        stdout_bytes: written.stdout,
        stderr_bytes: written.stderr,
        truncated: dropped.stdout > 0 || dropped.stderr > 0,
        stdout_dropped_bytes: dropped.stdout,
        stderr_dropped_bytes: dropped.stderr,
        error: end.and_then(|end| end.error.clone()),
    }
}
/// An exec and its sandbox.
struct KnownExec {
    handle: Arc<Handle>,
    journal: Arc<Journal>,
}

impl KnownExec {
    fn find(
        shared: &Shared,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ExecId,
    ) -> Result<Self, Error> {
        let handle = shared.find(who, sandbox)?;
        let journal = handle.execs.journal(id)?;
        Ok(Self { handle, journal })
    }

    /// Sends the guest a request that only a running exec can serve.
    async fn ask<F>(&self, ask: impl FnOnce(Arc<dyn Guest>, ExecId) -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), GuestError>>,
    {
        let ended = || Error::ExecEnded { id: self.journal.id().clone() };
        if self.journal.end().is_some() {
            return Err(ended());
        }
        let guest = admitted(&self.handle)?;
        match ask(guest, self.journal.id().clone()).await {
            // The guest no longer knows the exec, or knows only its end, which is on its way here.
            Err(GuestError::Refused { .. }) if self.ends_within(Duration::ZERO).await => {
                Err(ended())
            }
            answer => Ok(answer?),
        }
    }

    /// Like `ask`, for a request that should end the exec within this time; an exec that has ended is not changed.
    async fn finish<F>(
        &self,
        within: Duration,
        ask: impl FnOnce(Arc<dyn Guest>, ExecId) -> F,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), GuestError>>,
    {
        match self.ask(ask).await {
            Ok(()) => {
                self.ends_within(within).await;
                Ok(())
            }
            Err(Error::ExecEnded { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the end arrives within this time, plus the time for its delivery.
    async fn ends_within(&self, time: Duration) -> bool {
        tokio::time::timeout(time + limits::GUEST_ANSWER, self.journal.ended()).await.is_ok()
    }
}

/// Reads the exec's files. Blocks. `None` if it was removed meanwhile.
fn view(handle: &Handle, journal: &Journal) -> Option<ExecView> {
    let description = journal.description().ok()?;
    Some(shown(description, &journal.progress(), &handle.execs))
}

impl Broker {
    /// The running and kept execs of a sandbox after `after`, oldest first.
    pub async fn execs(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        (order, after): (Order, Option<ExecId>),
        limit: usize,
    ) -> Result<ExecPage, Error> {
        let handle = self.shared.find(who, sandbox)?;
        let all = order.of_oldest_first(handle.execs.index.list());
        let start = match &after {
            None => 0,
            Some(id) => {
                let found = all.iter().position(|journal| journal.id() == id);
                1 + found.ok_or_else(|| Error::InvalidField {
                    field: "cursor",
                    problem: format!("{id} is not kept any more; begin anew without it"),
                })?
            }
        };
        let page: Vec<_> = all.iter().skip(start).take(limit).cloned().collect();
        let last = page.last().map(|journal| journal.id().clone());
        let next = last.filter(|_| all.len() > start + page.len());
        let items = self.views_of(handle, page).await?;
        Ok(ExecPage { items, next })
    }

    /// The most recent execs of a sandbox, at most `limit`, oldest first.
    pub(crate) async fn last_execs(
        &self,
        handle: &Arc<Handle>,
        limit: usize,
    ) -> Result<Vec<ExecView>, Error> {
        let mut all = handle.execs.index.list();
        let last = all.split_off(all.len().saturating_sub(limit));
        self.views_of(Arc::clone(handle), last).await
    }

    async fn views_of(
        &self,
        handle: Arc<Handle>,
        journals: Vec<Arc<Journal>>,
    ) -> Result<Vec<ExecView>, Error> {
        let views = move || journals.iter().filter_map(|journal| view(&handle, journal)).collect();
        self.shared.blocking(move |_| Ok(views())).await
    }

    pub async fn exec_view(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ExecId,
    ) -> Result<ExecView, Error> {
        let KnownExec { handle, journal } = KnownExec::find(&self.shared, who, sandbox, id)?;
        let execs = Arc::clone(&handle.execs);
        let seen = self.shared.blocking(move |_| Ok(view(&handle, &journal))).await?;
        seen.ok_or_else(|| execs.not_kept(id))
    }

    /// Follows an exec, running or ended, from any offset.
    pub fn watch_exec(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ExecId,
        from: From,
    ) -> Result<ExecWatch, Error> {
        let known = KnownExec::find(&self.shared, who, sandbox, id)?;
        Ok(ExecWatch::new(&self.shared, known.journal.watch(from), None))
    }

    /// Exclusive access to an open stdin; waits until the current holder is done.
    pub async fn exec_stdin(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ExecId,
    ) -> Result<StdinTurn, Error> {
        let known = KnownExec::find(&self.shared, who, sandbox, id)?;
        StdinTurn::take(&known.handle.execs, id).await
    }

    /// Follows an exec that has a terminal, from a byte offset of its output.
    pub async fn attach_terminal(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ExecId,
        offset: u64,
        on_disconnect: OnDisconnect,
    ) -> Result<ExecWatch, Error> {
        if !self.exec_view(who, sandbox, id).await?.terminal {
            return Err(Error::NoTerminal { id: id.clone() });
        }
        let KnownExec { handle, journal } = KnownExec::find(&self.shared, who, sandbox, id)?;
        // If nothing runs, there is nothing to kill.
        let action = match on_disconnect {
            OnDisconnect::GoOn => None,
            OnDisconnect::Kill => admitted(&handle).ok().map(DisconnectAction::Kill),
            OnDisconnect::CloseStdin => {
                Some(DisconnectAction::CloseStdin(Arc::clone(&handle.execs)))
            }
        };
        let leash =
            action.map(|action| DisconnectGuard::new(&self.shared, Arc::clone(&journal), action));
        let from = From::only(OutputStream::Stdout, offset);
        Ok(ExecWatch::new(&self.shared, journal.watch(from), leash))
    }

    /// Sets the terminal size of an exec.
    pub async fn resize_exec(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ExecId,
        size: TerminalSize,
    ) -> Result<(), Error> {
        let known = KnownExec::find(&self.shared, who, sandbox, id)?;
        known.handle.execs.awaited.joined(id).await;
        let input = known.handle.execs.terminals.find(id);
        let input = input.ok_or_else(|| Error::NoTerminal { id: id.clone() })?;
        input.resize(size).await.map_err(|_| Error::ExecEnded { id: id.clone() })
    }

    /// Signals the first process of an exec.
    pub async fn signal_exec(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ExecId,
        signal: i32,
    ) -> Result<(), Error> {
        let known = KnownExec::find(&self.shared, who, sandbox, id)?;
        known.ask(|guest, id| async move { guest.signal(&id, signal).await }).await
    }

    /// Kills the whole tree of an exec, and waits until it has ended. An exec that has ended is not changed.
    pub async fn cancel_exec(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ExecId,
    ) -> Result<(), Error> {
        let known = KnownExec::find(&self.shared, who, sandbox, id)?;
        let cancel = |guest: Arc<dyn Guest>, id| async move { guest.cancel(&id).await };
        known.finish(Duration::ZERO, cancel).await
    }

    /// Ends the whole tree of an exec, at first with SIGTERM, and waits until it has ended.
    pub(crate) async fn end_exec(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ExecId,
        grace: Duration,
    ) -> Result<(), Error> {
        let known = KnownExec::find(&self.shared, who, sandbox, id)?;
        let end = |guest: Arc<dyn Guest>, id| async move { guest.end(&id, grace).await };
        known.finish(grace, end).await
    }
}
