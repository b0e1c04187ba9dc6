//! A connection into a sandbox. It counts against the sandbox's limit while it exists, and ends when it is idle for
//! long, and with the broker.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use sandkeep_core::limits::PORT_TOUCH;
use sandkeep_guestlink::ByteStream;

/// When a connection was last used, and whom to notify.
pub(super) struct Uses {
    last: Instant,
    idle_max: Duration,
    /// The last notification.
    told: Option<Instant>,
    tell: Box<dyn Fn() + Send>,
}

impl Uses {
    pub fn new(idle_max: Duration, tell: Box<dyn Fn() + Send>) -> Self {
        let mut uses = Self { last: Instant::now(), idle_max, told: None, tell };
        uses.note();
        uses
    }

    fn note(&mut self) {
        let now = Instant::now();
        self.last = now;
        if self.told.is_none_or(|told| now - told >= PORT_TOUCH) {
            self.told = Some(now);
            (self.tell)();
        }
    }

    fn idle_at(&self) -> Instant {
        self.last + self.idle_max
    }
}

pub struct PortStream {
    inner: Box<dyn ByteStream>,
    uses: Uses,
    /// Reset only when it fires, so that transfers do not pay for it.
    idle: Pin<Box<Sleep>>,
    /// One per direction: different tasks may wait for them.
    closing_read: Pin<Box<WaitForCancellationFutureOwned>>,
    closing_write: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: OwnedSemaphorePermit,
}

impl PortStream {
    pub(super) fn new(
        inner: Box<dyn ByteStream>,
        place: OwnedSemaphorePermit,
        closing: &CancellationToken,
        uses: Uses,
    ) -> Self {
        let closing = || Box::pin(closing.clone().cancelled_owned());
        Self {
            inner,
            idle: Box::pin(tokio::time::sleep_until(uses.idle_at())),
            uses,
            closing_read: closing(),
            closing_write: closing(),
            _place: place,
        }
    }

    /// Whether it was idle for too long.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.idle.as_mut().poll(context).is_ready() {
            let until = self.uses.idle_at();
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            self.idle.as_mut().reset(until);
        }
        Poll::Pending
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the daemon is shutting down")
}

impl AsyncRead for PortStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.closing_read.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(closed()));
        }
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        match read {
            Poll::Ready(_) => {
                self.uses.note();
                read
            }
            Poll::Pending => match self.poll_idle(context) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.closing_write.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(closed()));
        }
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        if written.is_ready() {
            self.uses.note();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Semaphore;

    use super::*;

    const IDLE: Duration = Duration::from_millis(20);

    fn pair(closing: &CancellationToken) -> (PortStream, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(64);
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a place");
        (PortStream::new(Box::new(ours), place, closing, Uses::new(IDLE, Box::new(|| {}))), theirs)
    }

    #[tokio::test]
    async fn a_silent_connection_ends_and_one_that_was_used_has_its_time_anew() {
        let (mut ours, mut theirs) = pair(&CancellationToken::new());
        let first = Instant::now();
        let ended = ours.read_u8().await.expect_err("nobody says anything");
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        assert!(first.elapsed() >= IDLE, "it had all of its time");
        theirs.write_all(b"x").await.expect("it is open");
        let again = Instant::now();
        assert_eq!(ours.read_u8().await.expect("it is open"), b'x');
        ours.read_u8().await.expect_err("nobody says anything more");
        assert!(again.elapsed() >= IDLE, "its time counts from when it was used");
    }

    #[tokio::test]
    async fn every_connection_ends_with_the_broker() {
        let closing = CancellationToken::new();
        let (mut ours, _theirs) = pair(&closing);
        closing.cancel();
        let ended = ours.read_u8().await.expect_err("the broker closes");
        assert_eq!(ended.kind(), io::ErrorKind::ConnectionAborted);
        assert!(ours.write_all(b"x").await.is_err());
    }
}
