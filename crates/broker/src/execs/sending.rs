//! The time between sending a command and the guest's first answer, in which nobody can say whether
//! it has begun.
//!
//! Whoever leaves then, or is told that there was no answer, has no execution to drop. So a guard
//! stands in for it: it finds the command again by its id and journals it to its end, as the broker does
//! for every exec that nobody listens to. On the ordinary way it costs no task and no message.

use std::sync::Arc;

use tracing::{debug, warn};

use super::pump::{PendingExec, Pump};
use sandkeep_core::{ExecId, limits};
use sandkeep_guestlink::{Execution, Guest, GuestError, Offsets};

/// Waits for `answer`, which starts a command under this id. Cancel-safe: if the call is dropped, a command that
/// begins goes on, is journaled, and keeps its place in the count until it ends. If it fails, a command that began is
/// canceled.
pub(crate) async fn watch_over(
    guest: &Arc<dyn Guest>,
    id: &ExecId,
    answer: impl Future<Output = Result<Execution, GuestError>>,
    pending: PendingExec,
) -> Result<Pump, GuestError> {
    let mut guard = Guard(Some(Sent { guest: Arc::clone(guest), id: id.clone(), pending }));
    let answer = answer.await;
    let sent = guard.0.take().expect("nobody else takes it");
    match answer {
        Ok(execution) => Ok(sent.pending.board_first(execution)),
        Err(error) => {
            match may_have_begun(&error) {
                true => sent.spawn_clean_up(CleanUp::Cancel),
                false => sent.pending.abandon(),
            }
            Err(error)
        }
    }
}

/// Whether the guest may have got the command although it gave no answer.
fn may_have_begun(error: &GuestError) -> bool {
    match error {
        GuestError::Unreachable(_) | GuestError::TimedOut { .. } | GuestError::Protocol(_) => true,
        GuestError::Version { .. }
        | GuestError::Refused { .. }
        | GuestError::Unprepared { .. }
        | GuestError::PortClosed { .. }
        | GuestError::ShellNotFound { .. }
        | GuestError::ShellEnded { .. }
        | GuestError::ShellQueueFull { .. }
        | GuestError::TooManyShells { .. }
        | GuestError::Unsupported { .. } => false,
    }
}

/// What is to become of a command that nobody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CleanUp {
    /// Its caller left, as a caller of any exec may.
    GoOn,
    /// Its caller was told that it failed.
    Cancel,
}

/// A command on its way.
struct Sent {
    guest: Arc<dyn Guest>,
    id: ExecId,
    pending: PendingExec,
}

/// Empty once there is an answer.
struct Guard(Option<Sent>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(sent) = self.0.take() {
            sent.spawn_clean_up(CleanUp::GoOn);
        }
    }
}

impl Sent {
    fn spawn_clean_up(self, clean_up: CleanUp) {
        // Outside of a runtime there is nobody left to read: the process is ending.
        if tokio::runtime::Handle::try_current().is_ok() {
            let tasks = self.pending.shared.tasks.clone();
            tasks.spawn(self.clean_up(clean_up));
        }
    }

    async fn clean_up(self, clean_up: CleanUp) {
        let found = tokio::select! {
            () = self.pending.shared.closing.cancelled() => return,
            found = tokio::time::timeout(limits::EXEC_CLEAN_UP, self.find(clean_up)) => found,
        };
        match found {
            Ok(Ok(execution)) => self.pending.board_first(execution).run().await,
            // It never began, or is gone with its sandbox.
            Ok(Err(error)) => {
                debug!(exec = %self.id, %error, "an unanswered exec is not there");
                self.pending.abandon();
            }
            Err(_) => {
                warn!(exec = %self.id, "a guest never said what became of an exec");
                self.pending.lose("the guest never said whether it began");
            }
        }
    }

    /// A guest that was too slow for the command may be too slow for this, too: it is asked again.
    async fn find(&self, clean_up: CleanUp) -> Result<Execution, GuestError> {
        if clean_up == CleanUp::Cancel {
            // Whatever else it answers: if there is such an exec, it must still be collected.
            while let Err(GuestError::TimedOut { .. }) = self.guest.cancel(&self.id).await {}
        }
        loop {
            match self.guest.attach(&self.id, Offsets::default()).await {
                Err(GuestError::TimedOut { .. }) => {}
                answer => return answer,
            }
        }
    }
}
