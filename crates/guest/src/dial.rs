//! A connection to a port of the sandbox. Only loopback is there, and what listens on all addresses
//! listens on it, too: 127.0.0.1 is tried first, then ::1.
//!
//! The guest only connects. The connected socket goes to the host, which speaks to the sandbox's
//! process through it as if it were inside: no byte passes through here, and however slow or many the
//! connections are, the guest has nothing to do with them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys::{self, Loopback};

/// An attempt that is under way.
pub struct Dial {
    port: u16,
    to: Loopback,
    socket: OwnedFd,
}

/// What came of an attempt.
pub enum Dialed {
    /// It goes on: wait until its socket is writable.
    Pending(Dial),
    Connected(OwnedFd),
    /// Nobody listens.
    Closed,
    Failed(io::Error),
}

impl Dial {
    pub fn begin(port: u16) -> Dialed {
        Self::towards(Loopback::V4, port)
    }

    fn towards(to: Loopback, port: u16) -> Dialed {
        match sys::connect_tcp(to, port) {
            Ok(socket) => Dialed::Pending(Self { port, to, socket }),
            Err(error) => Self::after(to, port, error),
        }
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The socket has become writable.
    pub fn go_on(self) -> Dialed {
        match sys::connected(self.socket.as_fd()) {
            Ok(()) => Dialed::Connected(self.socket),
            Err(error) => Self::after(self.to, self.port, error),
        }
    }

    fn after(to: Loopback, port: u16, error: io::Error) -> Dialed {
        match (to, error.raw_os_error()) {
            (Loopback::V4, _) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Self::towards(Loopback::V6, port)
            }
            // A kernel without IPv6 has neither the family nor the address.
            (Loopback::V6, Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::ENETUNREACH)) => {
                Dialed::Closed
            }
            (Loopback::V6, _) if error.kind() == io::ErrorKind::ConnectionRefused => Dialed::Closed,
            (Loopback::V4 | Loopback::V6, _) => Dialed::Failed(error),
        }
    }
}
