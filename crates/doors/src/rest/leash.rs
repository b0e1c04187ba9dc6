//! Ends streams whose key no longer holds. A key is checked when a request comes; a stream may go on for
//! hours after that, so while one does, its key is looked at again and again.
//!
//! The whole connection is cut, not only the answer: that works for streams and for other protocols (a
//! terminal) alike, and a client cannot take it for the proper end of a stream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

use super::authenticate::Connection;
use crate::auth::{Auth, Lease};
use sandkeep_core::limits::LEASE_LOOK;

/// What holds a live answer to its key.
pub struct Leash {
    auth: Arc<Auth>,
    lease: Lease,
    connection: Connection,
}

impl Leash {
    /// `None` if the answer may go on for as long as it likes.
    pub fn new(auth: Arc<Auth>, lease: Lease, connection: Connection) -> Option<Self> {
        match lease {
            Lease::Unbound => None,
            Lease::Key(_) => Some(Self { auth, lease, connection }),
        }
    }

    /// Watches the key until the answer is over.
    pub fn hold(self, answer: Response) -> Response {
        let over = self.connection.over.clone();
        match answer.status() {
            // What comes now is no body; it is over with the connection.
            StatusCode::SWITCHING_PROTOCOLS => {
                tokio::spawn(self.watch(over));
                answer
            }
            _ => {
                let over = over.child_token();
                tokio::spawn(self.watch(over.clone()));
                answer.map(|body| guarded(body, over.drop_guard()))
            }
        }
    }

    async fn watch(self, over: CancellationToken) {
        loop {
            tokio::select! {
                () = over.cancelled() => return,
                () = tokio::time::sleep(LEASE_LOOK) => {}
            }
            if !self.auth.holds(&self.lease).await {
                tracing::info!(lease = ?self.lease, "a stream is cut off: its key does not hold");
                return self.connection.cut.cancel();
            }
        }
    }
}

/// The same body, with something that is dropped when it is.
fn guarded(body: Body, guard: DropGuard) -> Body {
    Body::from_stream(body.into_data_stream().map(move |chunk| {
        let _held = &guard;
        chunk
    }))
}

/// A connection that can be cut off from outside, whoever holds it by then.
pub struct Cuttable<S> {
    inner: S,
    read: Pin<Box<WaitForCancellationFutureOwned>>,
    write: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Says that the connection is over when this is dropped.
    _over: DropGuard,
    /// It counts for as long as anybody holds it, in whatever protocol.
    _place: OwnedSemaphorePermit,
}

impl<S> Cuttable<S> {
    pub fn new(inner: S, connection: &Connection, place: OwnedSemaphorePermit) -> Self {
        // One for each direction: they may be waited for by different tasks.
        let cut = || Box::pin(connection.cut.clone().cancelled_owned());
        let (read, write) = (cut(), cut());
        let over = connection.over.clone().drop_guard();
        Self { inner, read, write, _over: over, _place: place }
    }
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the key of the connection does not hold")
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
