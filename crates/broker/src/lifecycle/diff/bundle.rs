//! A diff and the files that are new in it, as one stream. What it is made of stays until the stream is over, so a
//! client that stops taking it is left after a while; it holds no thread meanwhile.

use std::io;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::{Comparison, DiffRequest, READ};
use crate::Broker;
use crate::error::Error;
use sandkeep_core::{Principal, SandboxId, limits};
use sandkeep_tree::{
    View,
    diff::{self, Diff},
    effort::CancelOnDrop,
};

/// The stream, as a tar. Dropping it ends the work.
pub struct DiffBundle {
    /// An empty one is the end, so that a stream which was broken off is not taken for whole.
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    over: bool,
    _unread: CancelOnDrop,
}

impl DiffBundle {
    /// The next piece; `None` at the end. An error is the last: then the stream is not whole.
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
    /// Resolves when it is known what the diff is; what goes wrong later breaks the stream.
    pub async fn diff_bundle(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: DiffRequest,
    ) -> Result<DiffBundle, Error> {
        let slot = self.shared.file_work.take(&who.organization)?;
        let request = DiffRequest { limit: Some(limits::DIFF_CHANGES_MAX), ..request };
        let mut comparison = self.comparison(who, id, request)?;
        let broker = self.clone();
        let _unread = comparison.work.effort.cancel_on_drop();
        let (sender, pieces) = mpsc::channel(limits::DIFF_CHUNKS_QUEUED);
        let (began, begun) = oneshot::channel();
        self.shared.tasks.spawn(async move {
            let _slot = slot;
            match broker.stand_in(&mut comparison).await {
                Ok(()) => broker.bundle(&comparison, began, sender).await,
                Err(error) => drop(began.send(Err(error))),
            }
            broker.remove_stand_in(&comparison).await;
        });
        begun.await.unwrap_or(Err(Error::ShuttingDown))?;
        Ok(DiffBundle { pieces, over: false, _unread })
    }

    async fn bundle(
        &self,
        comparison: &Comparison,
        began: oneshot::Sender<Result<(), Error>>,
        sender: mpsc::Sender<io::Result<Bytes>>,
    ) {
        let _kept = comparison.keep().await;
        let (manifest, diff, to) = match self.compared(comparison).await {
            Ok(compared) => compared,
            Err(error) => return drop(began.send(Err(error))),
        };
        let _ = began.send(Ok(()));
        if let Err(error) = stream(comparison, (manifest, diff, to), &sender).await {
            // If there is no room for it, the stream has no end, which says enough.
            let _ = sender.try_send(Err(io::Error::other(error)));
        }
    }

    async fn compared(&self, comparison: &Comparison) -> Result<(Vec<u8>, Diff, View), Error> {
        let (from, to) = self.views(comparison).await?;
        let options = comparison.options.clone();
        let compared = comparison.work.run(READ, move || {
            let diff = diff::compare(&from, &to, &options)?;
            let changes = diff::told_with_digests(&diff, &from, &to)?;
            Ok((diff, changes, to))
        });
        let (diff, changes, to) = compared.await?;
        let manifest = serde_json::to_vec(&comparison.tell(&diff, changes));
        Ok((manifest.expect("a diff holds only texts and numbers"), diff, to))
    }
}

/// Reads the bundle and hands it over, piece by piece, as fast as it is taken.
async fn stream(
    comparison: &Comparison,
    (manifest, diff, to): (Vec<u8>, Diff, View),
    sender: &mpsc::Sender<io::Result<Bytes>>,
) -> Result<(), Error> {
    let (bytes, time) = (limits::TREE_WORK_MAX_BYTES, limits::DIFF_STREAM_MAX);
    let work = comparison.work.then(comparison.work.effort.anew(bytes, time));
    let mut bundle = diff::bundle(manifest, diff, to.within(&work.effort));
    loop {
        let piece;
        (bundle, piece) = work.piece(READ, bundle).await?;
        let is_end = piece.is_empty();
        let sending = tokio::time::timeout(limits::DIFF_STALL, sender.send(Ok(piece)));
        match work.unless_unwanted(sending).await? {
            Ok(Ok(())) if !is_end => {}
            // That was all, or nobody takes the rest.
            Ok(_) | Err(_) => return Ok(()),
        }
    }
}
