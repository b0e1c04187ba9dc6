//! Our own stdin, passed on as it arrives: a slow writer is not waited for, and a fast one is slowed to the command's
//! pace.

use std::convert::Infallible;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, stream};
use tokio::io::{AsyncReadExt, Stdin};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::cli::failure::Failure;
use crate::cli::print;
use sandkeep_client::Client;
use sandkeep_core::limits::{STDIN_CHUNK_BYTES, STDIN_PAUSE};

/// The next bytes; `None` at the end. Cancel-safe.
pub async fn next(stdin: &mut Stdin) -> Option<Bytes> {
    let mut chunk = BytesMut::with_capacity(STDIN_CHUNK_BYTES);
    match stdin.read_buf(&mut chunk).await {
        Ok(0) => None,
        Ok(_) => Some(chunk.freeze()),
        Err(e) => {
            print::note(&format!("cannot read stdin: {e}"));
            None
        }
    }
}

/// Why a request ends.
enum Filled {
    /// No input for a while. Later input gets a new request, because the daemon does not wait long.
    Paused,
    Ended,
}

/// Sends all of stdin to the exec at this path, and then closes it. It is not an error if the exec takes no more input
/// or has ended.
pub async fn pass(client: &Client, path: &str) -> Result<(), Failure> {
    let mut stdin = tokio::io::stdin();
    loop {
        let sent = match next(&mut stdin).await {
            Some(first) => send(client, path, first, &mut stdin).await,
            None => Ok(Filled::Ended),
        };
        let told = match sent {
            Ok(Filled::Paused) => continue,
            Ok(Filled::Ended) => client.post_bytes(path, &[("close", "true")], "").await,
            Err(error) => Err(error),
        };
        return match told {
            Err(error) if error.code().is_some_and(takes_no_more) => Ok(()),
            told => Ok(told?),
        };
    }
}

fn takes_no_more(code: &str) -> bool {
    matches!(code, "stdin_closed" | "exec_ended" | "exec_not_found")
}

/// One request: it carries input until there is a pause.
async fn send(
    client: &Client,
    path: &str,
    first: Bytes,
    stdin: &mut Stdin,
) -> Result<Filled, sandkeep_client::Error> {
    let (pieces, carried) = mpsc::channel(1);
    let body = reqwest::Body::wrap_stream(received(carried));
    let mut answer = std::pin::pin!(client.post_bytes(path, &[], body));
    let filled = tokio::select! {
        // An answer before the request is complete can only be a refusal.
        refused = &mut answer => return refused.map(|()| Filled::Ended),
        filled = fill(pieces, first, stdin) => filled,
    };
    answer.await.map(|()| filled)
}

async fn fill(pieces: mpsc::Sender<Bytes>, first: Bytes, stdin: &mut Stdin) -> Filled {
    let mut piece = first;
    // If the request was aborted, the answer has the reason.
    while pieces.send(piece).await.is_ok() {
        match timeout(STDIN_PAUSE, next(stdin)).await {
            Ok(Some(more)) => piece = more,
            Ok(None) => return Filled::Ended,
            Err(_elapsed) => break,
        }
    }
    Filled::Paused
}

fn received(pieces: mpsc::Receiver<Bytes>) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(pieces, |mut pieces| async move { Some((Ok(pieces.recv().await?), pieces)) })
}
