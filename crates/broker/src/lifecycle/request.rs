//! Requests to a supervisor. Each command carries the reply channel of its verb.

use std::sync::Arc;

use tokio::sync::oneshot;
use tracing::{Span, debug};

use super::amend::Amendment;
use super::create::Creation;
use super::pause::InFlight;
use super::revert::RevertRequest;
use super::rollback::RollbackRequest;
use super::snapshot::{Record, SnapshotRequest};
use crate::error::Error;
use sandkeep_core::network::NetworkPatch;
use sandkeep_core::{Moment, SnapshotId};
use sandkeep_storage::LayerId;
use sandkeep_traces::Step;
use sandkeep_tree::TreePath;

/// The sender for the supervisor's result; the caller waits on the other end.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;
pub(crate) type Answer<T> = oneshot::Receiver<Result<T, Error>>;

/// A queued command.
pub(crate) struct Request {
    pub command: Command,
    /// The caller's span: the supervisor's log lines for a command belong to the caller's request.
    pub span: Span,
    /// Its time in the queue.
    pub waiting: Step,
}

pub(crate) enum Command {
    /// The first command of every new sandbox.
    Create(Box<Creation>, Reply<()>),
    Start(Reply<()>),
    Stop(Reply<()>),
    Pause(InFlight, Reply<()>),
    Resume(Reply<()>),
    Destroy(Reply<()>),
    Amend(Box<Amendment>, Reply<()>),
    AmendNetwork(Box<NetworkPatch>, Reply<()>),
    /// Make a layer of the volume's content.
    Capture(LayerId, Reply<()>),
    /// The reply is the record; a transient snapshot has none.
    Snapshot(Box<SnapshotRequest>, Reply<Option<Arc<Record>>>),
    DeleteSnapshot(SnapshotId, Reply<()>),
    /// Restore some files. The reply is the paths that differed.
    Revert(Box<RevertRequest>, Reply<Vec<TreePath>>),
    Rollback(RollbackRequest, Reply<()>),
    /// End the sandbox if it has expired.
    Expire(Reply<()>),
    /// Record when the sandbox was last used.
    NoteActivity(Box<Moment>, Reply<()>),
}

impl Command {
    /// The name for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create(..) => "create",
            Self::Start(_) => "start",
            Self::Stop(_) => "stop",
            Self::Pause(..) => "pause",
            Self::Resume(_) => "resume",
            Self::Destroy(_) => "destroy",
            Self::Amend(..) => "amend",
            Self::AmendNetwork(..) => "amend_network",
            Self::Capture(..) => "capture",
            Self::Snapshot(..) => "snapshot",
            Self::DeleteSnapshot(..) => "delete_snapshot",
            Self::Revert(..) => "revert",
            Self::Rollback(..) => "rollback",
            Self::Expire(_) => "expire",
            Self::NoteActivity(..) => "note_activity",
        }
    }
}

/// The caller may be gone; the command was carried out all the same.
pub(super) fn answer<T>(reply: Reply<T>, result: Result<T, Error>) {
    match &result {
        Ok(_) => debug!("a command succeeded"),
        Err(error) => debug!(%error, "a command failed"),
    }
    let _ = reply.send(result);
}
