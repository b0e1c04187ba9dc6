//! Progress of long operations.

use std::io::{self, IsTerminal};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _, stream};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reqwest::Body;
use tokio::io::{AsyncRead, AsyncReadExt};

use sandkeep_core::limits::{SPINNER_TICK, STDIN_CHUNK_BYTES};

/// On stderr, and only if that is a terminal.
pub fn bar() -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template(
        "{spinner} {msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {elapsed}",
    );
    let bar = ProgressBar::with_draw_target(Some(0), target)
        .with_style(style.expect("the template is a valid one"));
    bar.enable_steady_tick(SPINNER_TICK);
    bar
}

/// The bytes of a reader, piece by piece.
pub fn read(source: impl AsyncRead + Send + Unpin) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::try_unfold(source, |mut source| async move {
        let mut piece = vec![0; STDIN_CHUNK_BYTES];
        let count = source.read(&mut piece).await?;
        piece.truncate(count);
        Ok((count > 0).then(|| (Bytes::from(piece), source)))
    })
}

/// The body of a request, as it is read.
pub fn pieces(source: impl AsyncRead + Send + Unpin + 'static, bar: &ProgressBar) -> Body {
    let bar = bar.clone();
    Body::wrap_stream(read(source).inspect_ok(move |piece| bar.inc(piece.len() as u64)))
}
