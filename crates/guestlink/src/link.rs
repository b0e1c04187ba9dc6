//! A connection to the guest: one operation. Both halves of an exec share it, so output is collected under a lock and
//! sent as far as the socket takes it; the next waiter sends the rest. There is no separate task, and a dropped future
//! never truncates a message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use guest_proto::{
    CHUNK_MAX, FrameReader, LEAF_FDS_MAX, TerminalSize, ToGuest, encode, encode_stdin,
};
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// Size of one read.
pub(super) const READ_LEN: usize = 16 * 1024;

pub(super) struct Link {
    stream: UnixStream,
    state: Mutex<State>,
    /// More stdin is wanted, or never again.
    stdin_changed: Notify,
    /// A waiter stopped before everything was sent.
    unsent_left: Notify,
}

struct State {
    out: Vec<u8>,
    sent: usize,
    stdin: StdinState,
}

/// Offsets count from the start of stdin.
#[derive(Clone, Copy)]
enum StdinState {
    Open { sent: u64, up_to: u64 },
    Closed,
}

impl Link {
    /// Sends `request` with the descriptors on a new connection, in one call.
    pub async fn begin(
        socket: OwnedFd,
        request: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Self> {
        // Sent before the reactor knows the socket: most requests fit at once.
        let sent = send_first(&socket, request, descriptors)?;
        let link = Self::over(socket.into())?;
        link.state().out = request[sent..].to_vec();
        link.flush().await?;
        Ok(link)
    }

    /// The bare connection, once all data is sent.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// An established connection without unsent data.
    pub fn over(socket: std::os::unix::net::UnixStream) -> io::Result<Self> {
        let state = State { out: Vec::new(), sent: 0, stdin: StdinState::Closed };
        Ok(Self {
            stream: UnixStream::from_std(socket)?,
            state: Mutex::new(state),
            stdin_changed: Notify::new(),
            unsent_left: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for bytes and feeds them to the reader; also sends unsent data. `Ok(0)` is the end. Cancel-safe.
    pub async fn receive(&self, reader: &mut FrameReader, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let interest = if self.state().has_unsent() {
                Interest::READABLE | Interest::WRITABLE
            } else {
                Interest::READABLE
            };
            let ready = tokio::select! {
                biased;
                ready = self.stream.ready(interest) => ready?,
                () = self.unsent_left.notified() => continue,
            };
            if ready.is_writable() {
                let _ = self.stream.try_io(Interest::WRITABLE, || self.state().send(&self.stream));
            }
            match reader.fill(buffer, |space| self.stream.try_read(space)) {
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The same for the first answer, which may include a descriptor; of several the last is kept.
    pub async fn receive_with_descriptor(
        &self,
        reader: &mut FrameReader,
        buffer: &mut [u8],
        descriptor: &mut Option<OwnedFd>,
    ) -> io::Result<usize> {
        loop {
            self.stream.readable().await?;
            let received = self
                .stream
                .try_io(Interest::READABLE, || receive_one(&self.stream, buffer, descriptor));
            match received {
                Ok(count) => {
                    reader.feed(&buffer[..count]);
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Queues a message and sends it if the socket has room now; otherwise the next wait does.
    pub fn say(&self, message: &ToGuest) {
        let mut state = self.state();
        encode(message, &mut state.out);
        // The reader notices and reports a broken connection.
        let _ = state.send(&self.stream);
    }

    /// Waits until everything is sent.
    async fn flush(&self) -> io::Result<()> {
        let leaving = Leaving(self);
        let mut result = self.state().send(&self.stream);
        while result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.stream.writable().await?;
            result = self.stream.try_io(Interest::WRITABLE, || self.state().send(&self.stream));
        }
        drop(leaving);
        result
    }

    /// Stdin is a pipe of which the guest has `offset` bytes and wants more up to `up_to`.
    pub fn open_stdin(&self, offset: u64, up_to: u64) {
        self.state().stdin = StdinState::Open { sent: offset, up_to };
    }

    /// How much of stdin was sent, by this and earlier connections; `None` once it is closed.
    pub fn stdin_sent(&self) -> Option<u64> {
        match self.state().stdin {
            StdinState::Open { sent, .. } => Some(sent),
            StdinState::Closed => None,
        }
    }

    /// The guest wants stdin up to this offset.
    pub fn want_stdin(&self, wanted: u64) {
        if let StdinState::Open { up_to, .. } = &mut self.state().stdin {
            *up_to = wanted.max(*up_to);
        }
        self.stdin_changed.notify_waiters();
    }

    /// No more stdin: it was ended, or the exec has ended.
    pub fn close_stdin(&self) {
        self.state().stdin = StdinState::Closed;
        self.stdin_changed.notify_waiters();
    }

    /// Sends as much stdin as the guest wants, at least one byte; returns how much.
    pub async fn write_stdin(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let changed = self.stdin_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let count = self.state().add_stdin(bytes)?;
            if count > 0 {
                self.flush().await?;
                return Ok(count);
            }
            changed.await;
        }
    }

    /// Sends a new terminal size, and waits until it is sent, so that a fast caller does not fill our memory.
    pub async fn resize(&self, size: TerminalSize) -> io::Result<()> {
        encode(&ToGuest::Resize(size), &mut self.state().out);
        self.flush().await
    }

    /// Ends stdin, once.
    pub async fn end_stdin(&self) -> io::Result<()> {
        {
            let mut state = self.state();
            if let StdinState::Closed = state.stdin {
                return Ok(());
            }
            encode(&ToGuest::StdinEof, &mut state.out);
        }
        self.close_stdin();
        self.flush().await
    }
}

impl State {
    fn has_unsent(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Sends what the socket takes; `WouldBlock` if that is not all.
    fn send(&mut self, stream: &UnixStream) -> io::Result<()> {
        while self.has_unsent() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            self.sent += net::send(stream, &self.out[self.sent..], flags)?;
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    fn add_stdin(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let StdinState::Open { sent, up_to } = &mut self.stdin else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let wanted = usize::try_from(up_to.saturating_sub(*sent)).unwrap_or(usize::MAX);
        let count = bytes.len().min(wanted).min(CHUNK_MAX);
        if count > 0 {
            *sent += count as u64;
            encode_stdin(&bytes[..count], &mut self.out);
        }
        Ok(count)
    }
}

/// Wakes the reader, to send the rest, when a writer's future is dropped before it was done.
struct Leaving<'a>(&'a Link);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if self.0.state().has_unsent() {
            self.0.unsent_left.notify_one();
        }
    }
}

/// Receives bytes and at most one descriptor; the kernel closes any others.
fn receive_one(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptor: &mut Option<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = net::recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = ancillary {
            *descriptor = received.last().or(descriptor.take());
        }
    }
    Ok(message.bytes)
}

fn send_first(
    socket: &OwnedFd,
    request: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LEAF_FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a leaf has too many descriptors"));
    }
    Ok(net::sendmsg(socket, &[IoSlice::new(request)], &mut control, SendFlags::NOSIGNAL)?)
}
