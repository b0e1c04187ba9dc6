//! The sandbox's end of a connection: it counts bytes, spreads them over time, and knows when it was last used.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::rate::Pace;

/// The bytes of all connections of a sandbox.
#[derive(Debug)]
pub(crate) struct Meter {
    up: AtomicU64,
    down: AtomicU64,
    /// Bytes of earlier daemons, which count to the total.
    before: AtomicU64,
    /// 0 is no limit.
    per_sec: AtomicU64,
    total_max: AtomicU64,
    pace: Pace,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let [up, down, before, per_sec, total_max] = [const { AtomicU64::new(0) }; 5];
        Self { up, down, before, per_sec, total_max, pace: Pace::new() }
    }

    pub(crate) fn bound(&self, per_sec: Option<u64>, total_max: Option<u64>) {
        self.per_sec.store(per_sec.unwrap_or(0), Relaxed);
        self.total_max.store(total_max.unwrap_or(0), Relaxed);
    }

    pub(crate) fn add_earlier(&self, bytes: u64) {
        self.before.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.up.load(Relaxed), self.down.load(Relaxed))
    }

    /// What counts to the total, if it has a limit.
    pub(crate) fn counted(&self) -> Option<u64> {
        let (up, down) = self.bytes();
        let all = self.before.load(Relaxed).saturating_add(up).saturating_add(down);
        (self.total_max.load(Relaxed) != 0).then_some(all)
    }

    pub(crate) fn is_used_up(&self) -> bool {
        self.counted().is_some_and(|used| used >= self.total_max.load(Relaxed))
    }

    /// Returns until when the connection has to wait.
    fn count(&self, of: &AtomicU64, bytes: usize) -> Option<Instant> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        of.fetch_add(bytes, Relaxed);
        match self.per_sec.load(Relaxed) {
            0 => None,
            per_sec => self.pace.pay(bytes, per_sec),
        }
    }
}

/// What is known of one connection.
#[derive(Debug)]
pub(crate) struct Counts {
    up: AtomicU64,
    down: AtomicU64,
    started: Instant,
    used_ms: AtomicU64,
    /// The connection ends with a reset, so that the program inside sees an error and the kernel keeps nothing of it.
    resets: AtomicBool,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            started: Instant::now(),
            used_ms: AtomicU64::new(0),
            resets: AtomicBool::new(false),
        }
    }

    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.up.load(Relaxed), self.down.load(Relaxed))
    }

    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn reset_at_end(&self) {
        self.resets.store(true, Relaxed);
    }

    /// Returns when nothing was sent in either direction for this long.
    pub(crate) async fn idle(&self, idle: Duration) {
        loop {
            let used = self.started + Duration::from_millis(self.used_ms.load(Relaxed));
            let left = (used + idle).saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }

    fn used(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.used_ms.store(now, Relaxed);
    }
}

/// The sandbox's end of a connection.
#[derive(Debug)]
pub(crate) struct Inside {
    stream: TcpStream,
    meter: Arc<Meter>,
    counts: Arc<Counts>,
    /// The sandbox has no bytes left.
    used_up: CancellationToken,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Inside {
    pub(crate) fn new(
        stream: TcpStream,
        meter: Arc<Meter>,
        counts: Arc<Counts>,
        used_up: CancellationToken,
    ) -> Self {
        Self { stream, meter, counts, used_up, pause: None }
    }

    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }

    fn count(&mut self, direction: Direction, bytes: usize) {
        let (all, own) = match direction {
            Direction::Up => (&self.meter.up, &self.counts.up),
            Direction::Down => (&self.meter.down, &self.counts.down),
        };
        own.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Relaxed);
        self.counts.used();
        if let Some(until) = self.meter.count(all, bytes) {
            self.pause = Some(Box::pin(sleep_until(until)));
        }
        if self.meter.is_used_up() {
            self.used_up.cancel();
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

impl AsyncRead for Inside {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_pause(cx));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.count(Direction::Up, buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Inside {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_pause(cx));
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.count(Direction::Down, written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_pause(cx));
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts))?;
        self.count(Direction::Down, written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.counts.resets.load(Relaxed) {
            // It only fails for a connection that is gone already.
            let _ = self.stream.set_zero_linger();
        }
    }
}
