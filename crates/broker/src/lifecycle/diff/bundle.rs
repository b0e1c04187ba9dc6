//! A diff and its new files, as one stream. Its sources are kept until the stream ends, so a client that stops reading
//! is disconnected after a while. In the meantime the stream holds no thread.

use std::io;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::{Comparison, DiffRequest, READ, Sides};
use crate::Broker;
use crate::error::Error;
use crate::lifecycle::work::FileWork;
use sandkeep_core::{Principal, SandboxId, limits};
use sandkeep_tree::{
    View,
    diff::{self, Diff, Options},
    effort::CancelOnDrop,
};

/// The name and the content of a bundle's list, and the changes whose files follow it, from a tree.
pub(crate) type Listed = (&'static str, Vec<u8>, Diff, View);

/// The same, unless the request or the reading of files was wrong.
pub(super) type Compared = io::Result<Result<Listed, Error>>;

/// The stream, as a tar. Dropping it stops the work.
pub struct DiffBundle {
    /// An empty piece is the end, so that a stream that breaks off is not mistaken for complete.
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    over: bool,
    _unread: CancelOnDrop,
}

impl DiffBundle {
    pub(crate) fn of(pieces: mpsc::Receiver<io::Result<Bytes>>, unread: CancelOnDrop) -> Self {
        Self { pieces, over: false, _unread: unread }
    }

    /// The next piece; `None` at the end. An error is the last item: then the stream is incomplete.
    pub async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.over {
            return None;
        }
        let piece = match self.pieces.recv().await {
            Some(Ok(piece)) if !piece.is_empty() => return Some(Ok(piece)),
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(Err(error)),
            None => Some(Err(io::Error::other("the client took too long, or the work was ended"))),
        };
        self.over = true;
        piece
    }
}

impl Broker {
    /// Resolves when the diff is known; later errors break the stream off.
    pub async fn diff_bundle(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: DiffRequest,
    ) -> Result<DiffBundle, Error> {
        let slot = self.shared.file_work.take(&who.organization)?;
        let request = DiffRequest { limit: Some(limits::DIFF_CHANGES_MAX), ..request };
        let comparison = self.comparison(who, id, request)?;
        let work = |sides: Sides, from: View, to: View, options: &Options| {
            let diff = diff::compare(&from, &to, options)?;
            let changes = diff::told_with_digests(&diff, &from, &to)?;
            let list = serde_json::to_vec(&sides.tell(&diff, changes));
            let list = list.expect("a diff holds only texts and numbers");
            Ok(Ok((diff::MANIFEST, list, diff, to)))
        };
        self.send_bundle(slot, comparison, work).await
    }

    /// Sends the list that the work makes, and the new files of its diff.
    pub(super) async fn send_bundle(
        &self,
        slot: impl Send + 'static,
        mut comparison: Comparison,
        work: impl FnOnce(Sides, View, View, &Options) -> Compared + Send + 'static,
    ) -> Result<DiffBundle, Error> {
        let broker = self.clone();
        let unread = comparison.work.effort.cancel_on_drop();
        let (sender, pieces) = mpsc::channel(limits::DIFF_CHUNKS_QUEUED);
        let (began, begun) = oneshot::channel();
        self.shared.tasks.spawn(async move {
            let _slot = slot;
            match broker.stand_in(&mut comparison).await {
                Ok(()) => broker.bundle(&comparison, work, began, sender).await,
                Err(error) => drop(began.send(Err(error))),
            }
            broker.remove_stand_in(&comparison).await;
        });
        begun.await.unwrap_or(Err(Error::ShuttingDown))?;
        Ok(DiffBundle::of(pieces, unread))
    }

    async fn bundle(
        &self,
        comparison: &Comparison,
        work: impl FnOnce(Sides, View, View, &Options) -> Compared + Send + 'static,
        began: oneshot::Sender<Result<(), Error>>,
        sender: mpsc::Sender<io::Result<Bytes>>,
    ) {
        let _kept = comparison.keep().await;
        let listed = match self.compared(comparison, work).await.flatten() {
            Ok(listed) => listed,
            Err(error) => return drop(began.send(Err(error))),
        };
        let _ = began.send(Ok(()));
        if let Err(error) = pass_on(&comparison.work, listed, &sender).await {
            // If there is no room for the error, the stream has no end marker, which says enough.
            let _ = sender.try_send(Err(io::Error::other(error)));
        }
    }
}

/// Reads the bundle and passes it on, piece by piece, as fast as the receiver takes it.
pub(crate) async fn pass_on(
    work: &FileWork,
    (name, list, diff, to): Listed,
    sender: &mpsc::Sender<io::Result<Bytes>>,
) -> Result<(), Error> {
    let (bytes, time) = (limits::TREE_WORK_MAX_BYTES, limits::DIFF_STREAM_MAX);
    let work = work.then(work.effort.anew(bytes, time));
    let mut bundle = diff::bundle((name, list), diff, to.within(&work.effort));
    loop {
        let piece;
        (bundle, piece) = work.piece(READ, bundle).await?;
        let is_end = piece.is_empty();
        let sending = tokio::time::timeout(limits::DIFF_STALL, sender.send(Ok(piece)));
        match work.unless_unwanted(sending).await? {
            Ok(Ok(())) if !is_end => {}
            // The end of the bundle, or the receiver is gone.
            Ok(_) | Err(_) => return Ok(()),
        }
    }
}
