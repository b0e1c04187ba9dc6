//! The time between sending a command and the guest's first answer. In this time it is unknown whether the command has
//! started.
//!
//! A caller that disconnects in this time, or gets no answer, has no execution to drop. A guard takes its place: it
//! finds the command by id and journals it to its end, as the broker does for every exec without a listener. In the
//! normal case it costs no task and no message.

use std::sync::Arc;

use tracing::{debug, warn};

use super::pump::{PendingExec, Pump};
use sandkeep_core::{ExecId, limits};
use sandkeep_guestlink::{Execution, Guest, GuestError, Offsets};

/// Waits for `answer`, which starts a command under this id. Cancel-safe: if the future is dropped, a command that
/// starts continues, is journaled, and keeps its slot until it ends. If `answer` fails, a command that did start is
/// canceled.
pub(crate) async fn watch_over(
    guest: &Arc<dyn Guest>,
    id: &ExecId,
    answer: impl Future<Output = Result<Execution, GuestError>>,
    pending: PendingExec,
) -> Result<Pump, GuestError> {
    let mut guard = Guard(Some(SentCommand { guest: Arc::clone(guest), id: id.clone(), pending }));
    let answer = answer.await;
    let sent = guard.0.take().expect("nobody else takes it");
    match answer {
        Ok(execution) => Ok(sent.pending.board_first(execution)),
        Err(error) => {
            if may_have_begun(&error) {
                sent.spawn_clean_up(CleanUp::Cancel)
            } else {
                sent.pending.abandon()
            }
            Err(error)
        }
    }
}

/// Whether the guest may have received the command although it did not answer.
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

/// What happens to a command that nobody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CleanUp {
    /// Its client disconnected, as for any exec.
    GoOn,
    /// Its client got an error.
    Cancel,
}

/// A command that was sent.
struct SentCommand {
    guest: Arc<dyn Guest>,
    id: ExecId,
    pending: PendingExec,
}

/// Empty once the guest has answered.
struct Guard(Option<SentCommand>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(sent) = self.0.take() {
            sent.spawn_clean_up(CleanUp::GoOn);
        }
    }
}

impl SentCommand {
    fn spawn_clean_up(self, clean_up: CleanUp) {
        // Outside of a Tokio runtime nothing can read any more: the process is exiting.
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
            // It never started, or is gone with its sandbox.
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

    /// Retries, because a guest that was too slow for the command may be too slow for this request as well.
    async fn find(&self, clean_up: CleanUp) -> Result<Execution, GuestError> {
        if clean_up == CleanUp::Cancel {
            // Any other answer is ignored: if the exec exists, it must still be collected.
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
