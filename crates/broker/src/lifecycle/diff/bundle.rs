//! A diff and the files that are new in it, as one stream. What it is made of stays until the stream is over, so a
//! client that stops taking it is left after a while.

use std::io::{self, Read};

use bytes::Bytes;
use tokio::runtime::Handle as Tokio;
use tokio::sync::mpsc;

use super::{Comparison, DiffRequest, READ};
use crate::Broker;
use crate::error::Error;
use sandkeep_core::{Principal, SandboxId, limits};
use sandkeep_tree::{View, diff};

/// The stream, as a tar.
pub struct DiffBundle(mpsc::Receiver<io::Result<Bytes>>);

impl DiffBundle {
    /// The next piece; `None` at the end. An error is the last: then the stream is not whole.
    pub async fn next(&mut self) -> Option<io::Result<Bytes>> {
        self.0.recv().await
    }
}

impl Broker {
    /// Resolves when it is known that there is a diff; what goes wrong later breaks the stream.
    pub async fn diff_bundle(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: DiffRequest,
    ) -> Result<DiffBundle, Error> {
        let request = DiffRequest { limit: Some(limits::DIFF_CHANGES_MAX), ..request };
        let mut comparison = self.comparison(who, id, request)?;
        let broker = self.clone();
        let (sender, receiver) = mpsc::channel(limits::DIFF_CHUNKS_QUEUED);
        let (began, begun) = tokio::sync::oneshot::channel();
        self.shared.tasks.spawn(async move {
            let opened = match broker.stand_in(&mut comparison).await {
                Ok(()) => broker.views(&comparison).await,
                Err(error) => Err(error),
            };
            match opened {
                Ok((from, to)) => {
                    let _ = began.send(Ok(()));
                    broker.send(&comparison, from, to, sender).await;
                }
                Err(error) => drop(began.send(Err(error))),
            }
            broker.remove_stand_in(&comparison).await;
        });
        begun.await.unwrap_or(Err(Error::ShuttingDown))?;
        Ok(DiffBundle(receiver))
    }

    async fn send(
        &self,
        comparison: &Comparison,
        from: View,
        to: View,
        sender: mpsc::Sender<io::Result<Bytes>>,
    ) {
        let _kept = comparison.handle.snapshots.reading().await;
        let options = comparison.options.clone();
        let compared = comparison.volume.reading(READ, move || {
            let diff = diff::compare(&from, &to, &options)?;
            let changes = diff::told_with_digests(&diff, &from, &to)?;
            Ok((diff, changes, to))
        });
        let failed = match compared.await {
            Ok((diff, changes, to)) => {
                let manifest = serde_json::to_vec(&comparison.tell(&diff, changes));
                let manifest = manifest.expect("a diff holds only texts and numbers");
                let (stream, tokio) = (sender.clone(), Tokio::current());
                let bundle = move || pump(diff::bundle(manifest, diff, to), &stream, &tokio);
                comparison.volume.reading(READ, bundle).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = failed {
            let _ = sender.send(Err(io::Error::other(error))).await;
        }
    }
}

/// Reads the bundle and hands it over, piece by piece, as fast as it is taken.
fn pump(
    mut bundle: impl Read,
    stream: &mpsc::Sender<io::Result<Bytes>>,
    tokio: &Tokio,
) -> io::Result<()> {
    let mut buffer = vec![0; limits::STDIN_CHUNK_BYTES];
    loop {
        let read = bundle.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        let piece = Bytes::copy_from_slice(&buffer[..read]);
        let sent = tokio.block_on(async {
            tokio::time::timeout(limits::DIFF_STALL, stream.send(Ok(piece))).await
        });
        match sent {
            Ok(Ok(())) => {}
            // Nobody wants the rest.
            Ok(Err(_)) => return Ok(()),
            Err(_) => return Err(io::Error::other("the client does not take it")),
        }
    }
}
