//! The time between sending a command and the guest's first answer, in which nobody can say whether
//! it has begun.
//!
//! Whoever leaves then, or is told that there was no answer, has no execution to drop. So a guard
//! stands in for it: it finds the command again by its id and drains it, as the broker does for every
//! exec that nobody listens to. On the ordinary way it costs no task and no message.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, warn};

use super::drain;
use crate::broker::shared::Shared;
use crate::guest::{ExecRequest, Execution, Guest, GuestError, Offsets};
use crate::limits;
use crate::sandbox::ExecId;

/// Starts a command. Cancel-safe: if the call is dropped, a command that begins goes on, is drained,
/// and keeps its place in the count until it ends. If it fails, a command that began is canceled.
pub(in crate::broker) async fn send(
    shared: &Arc<Shared>,
    guest: &Arc<dyn Guest>,
    request: ExecRequest,
    permit: OwnedSemaphorePermit,
) -> Result<(Execution, OwnedSemaphorePermit), GuestError> {
    let sent = Sent { shared: shared.clone(), guest: guest.clone(), id: request.id.clone() };
    let mut guard = Guard(Some((sent, permit)));
    let answer = guest.exec(request).await;
    let (sent, permit) = guard.0.take().expect("nobody else takes it");
    match answer {
        Ok(execution) => Ok((execution, permit)),
        Err(error) => {
            if may_have_begun(&error) {
                sent.spawn_clean_up(Wish::Cancel, permit);
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
        | GuestError::Leaf(_)
        | GuestError::PortClosed { .. }
        | GuestError::Unsupported { .. } => false,
    }
}

/// What is to become of a command that nobody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Its caller left, as a caller of any exec may.
    GoOn,
    /// Its caller was told that it failed.
    Cancel,
}

/// A command on its way.
struct Sent {
    shared: Arc<Shared>,
    guest: Arc<dyn Guest>,
    id: ExecId,
}

/// Empty once there is an answer.
struct Guard(Option<(Sent, OwnedSemaphorePermit)>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((sent, permit)) = self.0.take() {
            sent.spawn_clean_up(Wish::GoOn, permit);
        }
    }
}

impl Sent {
    fn spawn_clean_up(self, wish: Wish, permit: OwnedSemaphorePermit) {
        // Outside of a runtime there is nobody left to read: the process is ending.
        if tokio::runtime::Handle::try_current().is_ok() {
            let tasks = self.shared.tasks.clone();
            tasks.spawn(self.clean_up(wish, permit));
        }
    }

    async fn clean_up(self, wish: Wish, permit: OwnedSemaphorePermit) {
        let found = tokio::select! {
            () = self.shared.closing.cancelled() => return,
            found = tokio::time::timeout(limits::EXEC_CLEAN_UP, self.find(wish)) => found,
        };
        match found {
            Ok(Ok(execution)) => drain(self.shared, execution, permit).await,
            // It never began, or is gone with its sandbox.
            Ok(Err(error)) => debug!(exec = %self.id, %error, "an unanswered exec is not there"),
            Err(_) => warn!(exec = %self.id, "a guest never said what became of an exec"),
        }
    }

    /// A guest that was too slow for the command may be too slow for this, too: it is asked again.
    async fn find(&self, wish: Wish) -> Result<Execution, GuestError> {
        if wish == Wish::Cancel {
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
