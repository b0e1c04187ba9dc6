//! Delivery of changes to a watcher, the same for every store on one machine.
//!
//! A watcher is a task that reads the store's change log from its position and passes the changes on through a bounded
//! channel. Writers only signal new changes and never wait for a watcher. The position of a watcher that is too slow
//! disappears from the log, and it ends with `Compacted`.

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};

use super::{Change, Prefix, Revision, StoreError, Watch};
use sandkeep_core::limits;

/// A part of the change log.
pub(super) struct Batch {
    pub changes: Vec<Change>,
    /// Everything up to here was read, whether or not it was under the prefix.
    pub seen: Revision,
}

/// The log that a watcher reads.
#[async_trait]
pub(super) trait ChangeLog: Send + 'static {
    /// The changes under the prefix after `after`, in order, at most [`limits::STORE_WATCH_BATCH_MAX`]. `Compacted` if
    /// one of them may have been trimmed.
    async fn read(&self, prefix: &Prefix, after: Revision) -> Result<Batch, StoreError>;
}

/// Starts a watcher. `latest` holds the newest revision; the watch ends when its sender is dropped.
pub(super) async fn follow(
    log: impl ChangeLog,
    mut latest: watch::Receiver<Revision>,
    prefix: Prefix,
    after: Revision,
) -> Result<Watch, StoreError> {
    // Marked before the read: a change in between wakes the task once unnecessarily, instead of never.
    latest.borrow_and_update();
    let first = log.read(&prefix, after).await?;
    let (sender, receiver) = mpsc::channel(limits::STORE_WATCH_BATCH_MAX);
    tokio::spawn(async move {
        let ended = sender.clone();
        tokio::select! {
            () = hand_on(log, latest, prefix, first, sender) => {}
            () = ended.closed() => {}
        }
    });
    Ok(receiver)
}

async fn hand_on(
    log: impl ChangeLog,
    mut latest: watch::Receiver<Revision>,
    prefix: Prefix,
    mut batch: Batch,
    sender: mpsc::Sender<Result<Change, StoreError>>,
) {
    loop {
        let seen = batch.seen;
        for change in batch.changes {
            if sender.send(Ok(change)).await.is_err() {
                return;
            }
        }
        if latest.wait_for(|newest| *newest > seen).await.is_err() {
            return;
        }
        batch = match log.read(&prefix, seen).await {
            Ok(batch) => batch,
            Err(error) => {
                // The receiver may be gone.
                let _ = sender.send(Err(error)).await;
                return;
            }
        };
    }
}
