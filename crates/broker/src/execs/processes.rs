//! Processes: execs without a timeout, whose end is kept until their sandbox is destroyed. A process is its exec: the
//! journal holds its description, its output and its end, so it survives the daemon like every exec. This module adds
//! readiness.
//!
//! ```text
//! starting ──▶ running ──▶ exited
//!     │ the port answers      ▲
//!     └───────────────────────┘ it may end earlier
//! ```

mod probe;
mod view;

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::watch;

use crate::Broker;
use crate::error::Error;
use crate::execs::{ExecDraft, ExecWatch};
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::{
    ExecId, Port, Principal, ProcessId, ProcessTerms, SandboxId, Signal, StartUp, limits,
};
use sandkeep_guestlink::journal::{From, Journal, Keep};

pub use view::{ProcessStatus, ProcessView};

/// The processes of a sandbox that have become ready.
pub(crate) struct Processes {
    ready: watch::Sender<HashSet<ExecId>>,
}

impl Default for Processes {
    fn default() -> Self {
        Self { ready: watch::Sender::new(HashSet::new()) }
    }
}

impl Processes {
    fn is_ready(&self, id: &ExecId) -> bool {
        self.ready.borrow().contains(id)
    }

    fn set_ready(&self, id: ExecId) {
        self.ready.send_modify(|ready| {
            ready.insert(id);
        });
    }

    async fn ready(&self, id: &ExecId) {
        // We own the sender, so it cannot be closed.
        let _ = self.ready.subscribe().wait_for(|ready| ready.contains(id)).await;
    }
}

/// A process and its sandbox.
struct KnownProcess {
    handle: Arc<Handle>,
    journal: Arc<Journal>,
}

impl Broker {
    /// Starts a process. It continues if its starter disconnects.
    pub async fn launch(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        draft: ExecDraft,
        terms: ProcessTerms,
    ) -> Result<ProcessId, Error> {
        terms.check().map_err(|wrong| Error::InvalidField {
            field: wrong.field(),
            problem: wrong.to_string(),
        })?;
        let handle = self.shared.find(who, sandbox)?;
        if handle.execs.index.processes().len() >= limits::PROCESSES_KEPT_MAX {
            let limit = limits::PROCESSES_KEPT_MAX;
            return Err(Error::LimitReached { what: "processes in the life of a sandbox", limit });
        }
        let journal = launch(&self.shared, &handle, draft, &terms, ExecId::random()).await?;
        Ok(ProcessId::of(journal.id()))
    }

    /// Waits until a process is ready or has ended, for as long as its terms say.
    pub async fn await_ready(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ProcessId,
        terms: &ProcessTerms,
    ) -> Result<(), Error> {
        let KnownProcess { handle, journal } = self.find_process(who, sandbox, id)?;
        let settled = async {
            tokio::select! {
                () = handle.processes.ready(journal.id()) => {}
                _ = journal.ended() => {}
                () = self.shared.detaching.cancelled() => {}
            }
        };
        // A timeout is not an error: the process stays `starting`.
        let _ = tokio::time::timeout(terms.patience(), settled).await;
        Ok(())
    }

    /// All processes of a sandbox, oldest first.
    pub async fn processes(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
    ) -> Result<Vec<ProcessView>, Error> {
        let handle = self.shared.find(who, sandbox)?;
        let views = move || {
            let all = handle.execs.index.processes();
            all.iter().filter_map(|journal| view::view(&handle, journal)).collect()
        };
        self.shared.blocking(move |_| Ok(views())).await
    }

    pub async fn process(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ProcessId,
    ) -> Result<ProcessView, Error> {
        let KnownProcess { handle, journal } = self.find_process(who, sandbox, id)?;
        let seen = self.shared.blocking(move |_| Ok(view::view(&handle, &journal))).await?;
        seen.ok_or_else(|| Error::ProcessNotFound { id: id.clone() })
    }

    /// The most recent output of a process, in order of arrival.
    pub async fn last_output(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ProcessId,
    ) -> Result<String, Error> {
        let KnownProcess { journal, .. } = self.find_process(who, sandbox, id)?;
        Ok(view::last_output(&journal).await)
    }

    /// Follows the output of a process, from any offset.
    pub fn watch_process(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ProcessId,
        from: From,
    ) -> Result<ExecWatch, Error> {
        let KnownProcess { journal, .. } = self.find_process(who, sandbox, id)?;
        self.watch_exec(who, sandbox, journal.id(), from)
    }

    pub async fn signal_process(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ProcessId,
        signal: Signal,
    ) -> Result<(), Error> {
        let KnownProcess { journal, .. } = self.find_process(who, sandbox, id)?;
        match self.signal_exec(who, sandbox, journal.id(), signal.number()).await {
            Err(Error::ExecEnded { .. }) => Err(Error::ProcessEnded { id: id.clone() }),
            answer => answer,
        }
    }

    /// Ends a process with its whole tree, and waits until it has ended: SIGTERM to all, and SIGKILL after a grace
    /// period. A process that has ended is not changed. Once the guest has the request, the rest does not depend on
    /// this daemon.
    pub async fn end_process(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ProcessId,
    ) -> Result<(), Error> {
        let KnownProcess { journal, .. } = self.find_process(who, sandbox, id)?;
        self.end_exec(who, sandbox, journal.id(), limits::STOP_GRACE).await
    }

    fn find_process(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        id: &ProcessId,
    ) -> Result<KnownProcess, Error> {
        let handle = self.shared.find(who, sandbox)?;
        match handle.execs.index.process(&id.exec()) {
            Some(journal) => Ok(KnownProcess { handle, journal }),
            None => Err(Error::ProcessNotFound { id: id.clone() }),
        }
    }
}

/// Starts an admitted process and its readiness probe.
async fn launch(
    shared: &Arc<Shared>,
    handle: &Arc<Handle>,
    draft: ExecDraft,
    terms: &ProcessTerms,
    id: ExecId,
) -> Result<Arc<Journal>, Error> {
    let draft = ExecDraft { keep: Keep::WithSandbox(terms.clone()), timeout: None, ..draft };
    let running = crate::execs::exec(shared, handle, draft, id.clone()).await?;
    // From here on a task takes the output.
    drop(running);
    let journal = handle.execs.journal(&id)?;
    probe::spawn(shared, handle, Arc::clone(&journal), terms);
    Ok(journal)
}

/// Starts the program that a template runs in its sandboxes, as the exec with this id.
pub(crate) async fn begin(
    shared: &Arc<Shared>,
    handle: &Arc<Handle>,
    start: &StartUp,
    id: ExecId,
) -> Result<Arc<Journal>, Error> {
    let draft = ExecDraft { argv: start.argv.clone(), ..ExecDraft::default() };
    launch(shared, handle, draft, &start.terms, id).await
}

/// Waits until a process is ready; returns an error if it ends or its time runs out before that.
pub(crate) async fn settled(
    shared: &Shared,
    handle: &Handle,
    journal: &Arc<Journal>,
    terms: &ProcessTerms,
) -> Option<String> {
    let ready = async {
        tokio::select! {
            biased;
            () = handle.processes.ready(journal.id()) => None,
            end = journal.ended() => Some(format!("it ended before it was ready ({})", end.outcome.name())),
            () = shared.closing.cancelled() => Some("the daemon is shutting down".to_owned()),
        }
    };
    let problem = match tokio::time::timeout(terms.patience(), ready).await {
        Ok(None) => return None,
        Ok(Some(problem)) => problem,
        Err(_) => format!("it was not ready after {} s", terms.patience().as_secs()),
    };
    Some(match view::last_output(journal).await.trim() {
        "" => format!("{problem}, and said nothing"),
        said => format!("{problem}; it said last: {said}"),
    })
}

/// Resolves when no process that was started for this port runs.
pub(crate) async fn ended_on(shared: &Arc<Shared>, handle: &Arc<Handle>, port: Port) {
    loop {
        let found = Arc::clone(handle);
        let running = move || {
            let all = found.execs.index.processes().into_iter();
            let mut going_on = all.filter(|journal| journal.end().is_none());
            going_on
                .find(|journal| view::terms(journal).is_some_and(|terms| terms.port == Some(port)))
        };
        match shared.blocking(move |_| Ok(running())).await {
            Ok(Some(journal)) => drop(journal.ended().await),
            Ok(None) | Err(_) => return,
        }
    }
}

/// Looks again at the processes that an earlier daemon started: nobody remembers which were ready.
pub(crate) async fn probe_again(shared: Arc<Shared>, handle: Arc<Handle>) {
    let found = Arc::clone(&handle);
    let unfinished = move || {
        let all = found.execs.index.processes().into_iter();
        let going_on = all.filter(|journal| journal.end().is_none());
        going_on.filter_map(|journal| Some((view::terms(&journal)?, journal))).collect::<Vec<_>>()
    };
    match shared.blocking(move |_| Ok(unfinished())).await {
        Ok(all) => {
            for (terms, journal) in all {
                probe::spawn(&shared, &handle, journal, &terms);
            }
        }
        Err(error) => tracing::warn!(id = %handle.id, %error, "cannot look at processes again"),
    }
}
