//! Where a client gets its connections: it connects to the guest, or the guest has dialed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{self, SocketAddrUnix};
use tokio::time::sleep;

use super::dial_back::Dialed;
use super::link::Link;
use sandkeep_core::limits;
use sandkeep_home::GUEST_SOCKET;

pub(super) enum Source {
    Socket {
        /// `/proc/self/fd/<home>/guest.sock`, because the real path may be longer than a socket address; valid while
        /// `home` is open.
        address: SocketAddrUnix,
        _home: OwnedFd,
    },
    Dialed(Dialed),
}

impl Source {
    pub fn socket(home: OwnedFd) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}/{GUEST_SOCKET}", home.as_raw_fd());
        Ok(Self::Socket { address: SocketAddrUnix::new(path)?, _home: home })
    }

    /// A connection on which `request` was sent with the descriptors, in one call. Waits while none is available; the
    /// caller sets the time limit. An error: the guest is gone, and has received nothing.
    pub async fn open(&self, request: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<Link> {
        loop {
            let socket = match self {
                Self::Socket { address, .. } => connect(address).await?,
                Self::Dialed(dialed) => dialed.take().await?,
            };
            match (Link::begin(socket, request, descriptors).await, self) {
                // Its guest closed it after it was checked; there may be another.
                (Err(error), Self::Dialed(_)) if is_closed(&error) => {}
                (result, _) => return result,
            }
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

async fn connect(address: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    let socket = net::socket_with(net::AddressFamily::UNIX, net::SocketType::STREAM, flags, None)?;
    loop {
        match net::connect(&socket, address) {
            // Too many others are waiting to be accepted.
            Err(Errno::AGAIN) => sleep(limits::GUEST_QUEUE_PAUSE).await,
            result => return Ok(result.map(|()| socket)?),
        }
    }
}
