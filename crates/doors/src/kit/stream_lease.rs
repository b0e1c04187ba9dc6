//! Ends streams whose key or signed URL is no longer valid. A key is checked when a request arrives; a stream may run
//! for hours after that, so its key is checked periodically.
//!
//! In HTTP/2 only the stream is reset, and the others on the connection continue. In HTTP/1.1 the connection is closed.
//! That also works for upgraded connections such as terminals, and the client cannot mistake it for the regular end of
//! the answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{StatusCode, Version};
use axum::response::Response;
use futures_util::{StreamExt, future, stream};
use http_body_util::{BodyStream, StreamBody};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

use super::connection_slots::ConnectionSlot;
use super::gate::Connection;
use crate::auth::{Auth, Lease};
use sandkeep_core::limits::LEASE_LOOK;

/// Ties a live answer to its key.
pub struct StreamLease {
    auth: Arc<Auth>,
    lease: Lease,
    connection: Connection,
    version: Version,
}

impl StreamLease {
    /// `None` if the answer may run without limit.
    pub fn new(
        auth: Arc<Auth>,
        lease: Lease,
        connection: Connection,
        version: Version,
    ) -> Option<Self> {
        match lease {
            Lease::Unbound => None,
            Lease::Key(_) | Lease::Pass { .. } => Some(Self { auth, lease, connection, version }),
        }
    }

    /// Watches the key until the answer is over.
    pub fn hold(self, answer: Response) -> Response {
        let (over, cut) = (self.connection.over.clone(), self.connection.cut.clone());
        match (answer.status(), self.version) {
            // An upgraded connection has no body; it ends with the connection.
            (StatusCode::SWITCHING_PROTOCOLS, _) => {
                tokio::spawn(self.watch(over, cut));
                answer
            }
            (_, version) => {
                let over = over.child_token();
                let cut = if version == Version::HTTP_2 { CancellationToken::new() } else { cut };
                tokio::spawn(self.watch(over.clone(), cut.clone()));
                answer.map(|body| guarded(body, over.drop_guard(), cut))
            }
        }
    }

    async fn watch(self, over: CancellationToken, cut: CancellationToken) {
        loop {
            tokio::select! {
                () = over.cancelled() => return,
                () = tokio::time::sleep(LEASE_LOOK) => {}
            }
            if !self.auth.holds(&self.lease).await {
                tracing::info!(lease = ?self.lease, "a stream is cut off: its key or signed URL does not hold");
                return cut.cancel();
            }
        }
    }
}

/// The same body. It drops `guard` when it is dropped, and fails as soon as it is canceled.
fn guarded(body: Body, guard: DropGuard, cut: CancellationToken) -> Body {
    // Frames and not only data: the end of a gRPC call is in its trailers.
    let frames = BodyStream::new(body).map(move |frame| {
        let _held = &guard;
        frame
    });
    let until_cut = frames.take_until(cut.clone().cancelled_owned());
    let broken = async move { cut.is_cancelled().then(|| Err(axum::Error::new(cut_off()))) };
    let whole = until_cut.chain(stream::once(broken).filter_map(future::ready));
    Body::new(StreamBody::new(whole))
}

/// A connection that can be closed from outside, regardless of which task holds it.
pub struct Cuttable<S> {
    inner: S,
    read: Pin<Box<WaitForCancellationFutureOwned>>,
    write: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Signals, when dropped, that the connection is over.
    _over: DropGuard,
    /// The connection counts for as long as it is held, in whatever protocol.
    _place: ConnectionSlot,
}

impl<S> Cuttable<S> {
    pub fn new(inner: S, connection: &Connection, place: ConnectionSlot) -> Self {
        // One per direction: different tasks may wait for them.
        let cut = || Box::pin(connection.cut.clone().cancelled_owned());
        let (read, write) = (cut(), cut());
        let over = connection.over.clone().drop_guard();
        Self { inner, read, write, _over: over, _place: place }
    }
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the key or signed URL does not hold any more")
}

impl<S: AsyncRead + Unpin> AsyncRead for Cuttable<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(cut_off()));
        }
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cuttable<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.write.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(cut_off()));
        }
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.write.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(cut_off()));
        }
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.write.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(cut_off()));
        }
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
