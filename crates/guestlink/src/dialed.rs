//! A socket that the guest has connected inside the sandbox and passed to us.
//!
//! It belongs to the sandbox's network, and the guest's side may have kept a copy. So nothing relies on the flags of
//! the descriptor, which the other side can change: every call is explicitly non-blocking.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketType, sockopt};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use sandkeep_sys::reactor;

pub(super) struct DialedStream {
    socket: AsyncFd<OwnedFd>,
}

impl DialedStream {
    /// Accepts only a TCP connection.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let family = sockopt::socket_domain(&socket)?;
        let kind = sockopt::socket_type(&socket)?;
        let internet = matches!(family, AddressFamily::INET | AddressFamily::INET6);
        if !internet || kind != SocketType::STREAM {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        net::getpeername(&socket)?;
        // Callers write complete messages.
        sockopt::set_tcp_nodelay(&socket, true)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        Ok(Self { socket: reactor::watch(socket, interest)? })
    }
}

impl AsyncRead for DialedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(context))?;
            let unfilled = buffer.initialize_unfilled();
            let received = ready
                .try_io(|socket| Ok(net::recv(socket.get_ref(), unfilled, RecvFlags::DONTWAIT)?.0));
            if let Ok(result) = received {
                return Poll::Ready(result.map(|count| buffer.advance(count)));
            }
        }
    }
}

impl AsyncWrite for DialedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.socket.poll_write_ready(context))?;
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = ready.try_io(|socket| Ok(net::send(socket.get_ref(), bytes, flags)?));
            if let Ok(result) = sent {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match net::shutdown(self.socket.get_ref(), Shutdown::Write) {
            // The other side was faster.
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}
