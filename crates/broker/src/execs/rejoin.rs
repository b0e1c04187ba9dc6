//! Resumes the execs of an earlier daemon at the offsets in their journals, so that output is neither lost nor
//! duplicated.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{debug, info};

use super::Execs;
use super::pump::PendingExec;
use crate::lifecycle::handle::Handle;
use crate::records::events::Revisited;
use crate::shared::Shared;
use sandkeep_core::{ExecId, limits};
use sandkeep_guestlink::{
    Execution, Guest, GuestError, KnownExec, Offsets, Origin,
    journal::{Description, StdinSource, Unfinished},
};

/// The execs of an earlier daemon that this one has not joined yet. Who wants to send something to one of them waits
/// for that: until then nobody knows whether it still runs.
pub(super) struct Awaited(watch::Sender<HashSet<ExecId>>);

impl Default for Awaited {
    fn default() -> Self {
        Self(watch::Sender::new(HashSet::new()))
    }
}

impl Awaited {
    pub fn begin(&self, ids: HashSet<ExecId>) {
        self.0.send_replace(ids);
    }

    /// It is joined, or never will be.
    fn over(&self, id: &ExecId) {
        self.0.send_if_modified(|ids| ids.remove(id));
    }

    pub fn contains(&self, id: &ExecId) -> bool {
        self.0.borrow().contains(id)
    }

    /// Waits until an exec is joined, or never will be; but not for ever.
    pub async fn joined(&self, id: &ExecId) {
        let mut ids = self.0.subscribe();
        let joined = ids.wait_for(|ids| !ids.contains(id));
        if tokio::time::timeout(limits::REJOIN_WITHIN, joined).await.is_err() {
            debug!(exec = %id, "an exec of an earlier daemon is not joined yet");
        }
    }
}

/// Reads the journals of a sandbox that this daemon has just found.
pub(crate) async fn load(shared: &Arc<Shared>, execs: &Arc<Execs>, in_log: &Revisited) {
    let index = Arc::clone(execs);
    match shared.blocking(move |_| index.index.load()).await {
        Ok(unfinished) => execs.found(unfinished, &in_log.ended_execs),
        Err(error) => tracing::warn!(%error, "cannot read the journals of a sandbox"),
    }
}

/// The sandbox does not run, so none of its execs do.
pub(crate) fn lose_all(shared: &Arc<Shared>, handle: &Handle) {
    for (description, pending) in pending_execs(shared, handle) {
        pending.lose("the sandbox ended while no daemon watched");
        handle.execs.awaited.over(&description.exec_id);
    }
}

/// Resumes everything that an earlier daemon left in a running sandbox.
pub(crate) async fn rejoin(shared: Arc<Shared>, handle: Arc<Handle>, guest: Arc<dyn Guest>) {
    // Shells first: their leaves are in use, and must not be assigned to others.
    let shells = tokio::select! {
        () = shared.closing.cancelled() => return,
        shells = guest.shells() => shells,
    };
    if let Err(error) = shells {
        debug!(id = %handle.id, %error, "cannot list the shells of an adopted sandbox");
    }
    for (description, pending) in pending_execs(&shared, &handle) {
        let joined = join(Arc::clone(&guest), description, pending);
        shared.tasks.spawn(joined);
    }
    let known = tokio::select! {
        () = shared.closing.cancelled() => return,
        known = guest.execs() => known,
    };
    match known {
        Ok(known) => collect_ended(&shared, &handle, &guest, known).await,
        Err(error) => {
            debug!(id = %handle.id, %error, "cannot list the execs of an adopted sandbox");
        }
    }
}

/// Forgets an exec that has a journal but never started.
pub(crate) fn forget(shared: &Arc<Shared>, handle: &Handle, id: &ExecId) {
    if let Some(unfinished) = handle.execs.take_found_of(id) {
        pending(shared, handle, unfinished).1.abandon();
        handle.execs.awaited.over(id);
    }
}

/// The execs without an end, each with its slot.
fn pending_execs(shared: &Arc<Shared>, handle: &Handle) -> Vec<(Description, PendingExec)> {
    let found = handle.execs.take_found().into_iter();
    found.map(|unfinished| pending(shared, handle, unfinished)).collect()
}

fn pending(
    shared: &Arc<Shared>,
    handle: &Handle,
    unfinished: Unfinished,
) -> (Description, PendingExec) {
    let Unfinished { description, writer } = unfinished;
    let permit = handle.execs.resumed(&description.keep);
    let (shared, execs) = (Arc::clone(shared), Arc::clone(&handle.execs));
    let command = shared.policy.told_command(&description.argv);
    (description, PendingExec { shared, execs, writer, permit, command })
}

async fn join(guest: Arc<dyn Guest>, description: Description, pending: PendingExec) {
    let (id, from) = (description.exec_id, pending.writer.written());
    let execs = Arc::clone(&pending.execs);
    let answer = tokio::select! {
        () = pending.shared.closing.cancelled() => return,
        answer = attach(&*guest, &id, from) => answer,
    };
    match answer {
        Ok(execution) => {
            info!(exec = %id, stdout = from.stdout, stderr = from.stderr, "goes on with an exec");
            if description.terminal {
                pending.execs.terminals.open(id.clone(), execution.input());
            }
            give_stdin(&pending, &id, description.stdin, &execution);
            execs.awaited.over(&id);
            pending.board(execution).run().await;
        }
        Err(GuestError::Refused { .. }) => pending.lose("the sandbox does not know it any more"),
        Err(error) => pending.lose(&sandkeep_core::with_causes(&error)),
    }
    execs.awaited.over(&id);
}

/// Retries while the guest is busy: only the guest knows the fate of the exec.
async fn attach(guest: &dyn Guest, id: &ExecId, from: Offsets) -> Result<Execution, GuestError> {
    loop {
        match guest.attach(id, from).await {
            Err(GuestError::TimedOut { .. }) => {}
            answer => return answer,
        }
    }
}

/// Input that a client had not yet sent died with the earlier daemon: the command's stdin is closed after the bytes
/// that had arrived. An open stdin stays open.
fn give_stdin(pending: &PendingExec, id: &ExecId, stdin: StdinSource, execution: &Execution) {
    let input = execution.input();
    match stdin {
        StdinSource::None => {}
        StdinSource::Open => pending.execs.stdins.open(id.clone(), input),
        StdinSource::Given => {
            pending.shared.tasks.spawn(async move {
                // It may have ended meanwhile.
                let _ = input.close().await;
            });
        }
    }
}

/// Lets the guest forget execs that are journaled to their end, or are never journaled.
async fn collect_ended(
    shared: &Arc<Shared>,
    handle: &Handle,
    guest: &Arc<dyn Guest>,
    known: Vec<KnownExec>,
) {
    // Attaching to an exec disconnects its current watcher, which may be a caller of ours by now.
    for exec in known.into_iter().filter(|exec| exec.origin == Origin::Earlier) {
        let journal = handle.execs.index.find(&exec.id);
        let (from, grace) = match journal.map(|journal| journal.progress()) {
            Some(progress) if progress.end.is_none() => continue,
            Some(progress) => (progress.written, None),
            // Its caller was connected to the earlier daemon and is gone, so the exec is ended.
            None => (Offsets::default(), Some(limits::TOOLBOX_CLEAN_UP)),
        };
        match guest.attach(&exec.id, from).await {
            Ok(execution) => {
                let (closing, guest) = (shared.closing.clone(), Arc::clone(guest));
                shared.tasks.spawn(async move {
                    tokio::select! {
                        () = closing.cancelled() => {}
                        () = collect(&*guest, &exec.id, execution, grace) => {}
                    }
                });
            }
            Err(error) => {
                debug!(id = %handle.id, exec = %exec.id, %error, "cannot join an exec");
            }
        }
    }
}

/// Takes all events of an exec until it has ended. With a grace period it is made to end: its stdin is closed, and it
/// is killed after that time.
pub(crate) async fn collect(
    guest: &dyn Guest,
    id: &ExecId,
    mut execution: Execution,
    grace: Option<Duration>,
) {
    if let Some(grace) = grace {
        let _ = execution.input().close().await;
        let ended = async { while execution.next().await.is_some() {} };
        if tokio::time::timeout(grace, ended).await.is_ok() {
            return;
        }
        let _ = guest.cancel(id).await;
    }
    while execution.next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_wants_an_exec_of_an_earlier_daemon_waits_until_it_is_joined() {
        let (awaited, id) = (Awaited::default(), ExecId::random());
        awaited.joined(&id).await;
        awaited.begin([id.clone()].into());
        let waiting = awaited.joined(&id);
        tokio::pin!(waiting);
        let early = std::future::poll_fn(|context| {
            std::task::Poll::Ready(waiting.as_mut().poll(context).is_ready())
        });
        assert!(!early.await, "it is not joined yet");
        awaited.over(&id);
        waiting.await;
        awaited.over(&id);
        awaited.joined(&id).await;
    }
}
