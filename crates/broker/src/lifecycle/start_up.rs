//! The template's start command: launched as a process when the sandbox comes up, and waited for until it is ready. If
//! it fails during create, the sandbox is not created; if it fails during start, the sandbox stays, and the caller gets
//! the error.
//!
//! ```text
//!  note: exec X is due ─▶ the sandbox comes up ─▶ exec X ─▶ the note is removed ─▶ ready
//! ```
//!
//! It runs exactly once each time the sandbox comes up, even if the daemon dies in between. The id of its exec is
//! chosen in advance, and no guest runs two execs with one id. A daemon that finds the note therefore looks for X: in
//! the journals, if it has ended, or in the guest. If neither knows X, it never started.

use std::sync::Arc;

use tracing::{info, warn};

use super::handle::Handle;
use super::supervisor::Supervisor;
use crate::error::Error;
use crate::execs::processes;
use crate::execs::rejoin;
use sandkeep_core::{ExecId, StartUp, State, failpoint};
use sandkeep_guestlink::{Guest, GuestError};

impl Supervisor {
    pub(super) fn template_start_up(&self) -> Option<StartUp> {
        self.meta.spec.image_defaults().and_then(|defaults| defaults.start.clone())
    }

    /// Records that the sandbox is about to come up, if its template has a start command.
    pub(crate) async fn expect_start_up(&self) -> Result<(), Error> {
        if self.template_start_up().is_none() {
            return Ok(());
        }
        let home = self.home.clone();
        self.shared.blocking(move |_| home.note_start_up(&ExecId::random())).await?;
        failpoint!("start_up.after_note");
        Ok(())
    }

    async fn start_up_due(&self) -> Option<(StartUp, ExecId)> {
        let start = self.template_start_up()?;
        let home = self.home.clone();
        let due = self.shared.blocking(move |_| Ok(home.start_up_due())).await.ok().flatten()?;
        Some((start, due))
    }

    /// If the note cannot be removed, the next daemon finds the exec, and nothing runs twice.
    async fn start_up_begun(&self) {
        let home = self.home.clone();
        if let Err(error) = self.shared.blocking(move |_| home.forget_start_up()).await {
            warn!(id = %self.id(), %error, "cannot note down that a sandbox was started up");
        }
    }

    /// Launches the start command if it is due. The sandbox runs, and is visible.
    pub(crate) async fn start_up(&self) -> Result<(), Error> {
        // For a sandbox that is being recovered this happens later, when its running execs are known again.
        let Some(handle) = self.shared.supervised(self.id()) else { return Ok(()) };
        let Some((start, due)) = self.start_up_due().await else { return Ok(()) };
        let failed = |problem: String| Error::StartUpFailed { id: self.id().clone(), problem };
        let begun = processes::begin(&self.shared, &handle, &start, due).await;
        failpoint!("start_up.after_launch");
        // A caller that gets a failure must not find it running later.
        self.start_up_begun().await;
        failpoint!("start_up.after_begun");
        let journal = begun.map_err(|error| failed(error.to_string()))?;
        let shared = Arc::clone(&self.shared);
        let problem = tokio::select! {
            problem = processes::settled(&shared, &handle, &journal, &start.terms) => problem,
            // A destroy need not wait for the start command.
            () = self.destroy_awaited() => None,
        };
        match problem {
            None => Ok(()),
            Some(problem) => Err(failed(problem)),
        }
    }

    /// Resumes everything that an earlier daemon left in a running sandbox. A due start command is launched before any
    /// other request.
    pub(crate) async fn rejoin(&self, handle: &Arc<Handle>, guest: Arc<dyn Guest>) {
        let due = match self.status().state() {
            State::Running => self.start_up_due().await,
            _ => None,
        };
        let shared = Arc::clone(&self.shared);
        let Some((start, due)) = due else {
            let rejoin = rejoin::rejoin(shared, Arc::clone(handle), guest);
            self.shared.tasks.spawn(rejoin);
            return;
        };
        let began = has_begun(handle, guest.as_ref(), &due).await;
        if let Ok(false) = began {
            rejoin::forget(&shared, handle, &due);
        }
        rejoin::rejoin(shared, Arc::clone(handle), guest).await;
        match began {
            Ok(true) => self.start_up_begun().await,
            Ok(false) => match processes::begin(&self.shared, handle, &start, due).await {
                Ok(_) => {
                    info!(id = %self.id(), "started up a sandbox for an earlier daemon");
                    self.start_up_begun().await;
                }
                Err(error) => warn!(id = %self.id(), %error, "cannot start up a sandbox"),
            },
            Err(error) => {
                warn!(id = %self.id(), %error, "cannot tell whether a sandbox was started up")
            }
        }
    }
}

/// Whether an exec has run or is running.
async fn has_begun(handle: &Handle, guest: &dyn Guest, exec: &ExecId) -> Result<bool, GuestError> {
    let journal = handle.execs.index.find(exec);
    if journal.is_some_and(|journal| journal.end().is_some()) {
        return Ok(true);
    }
    Ok(guest.execs().await?.iter().any(|known| known.id == *exec))
}
