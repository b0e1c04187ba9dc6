//! A connection to a port of the sandbox. The only network is loopback, and servers on all addresses also listen there:
//! 127.0.0.1 is tried first, then ::1.
//!
//! The guest only connects. The connected socket is passed to the host, which then talks to the sandbox's process
//! directly: no byte passes through the guest, so slow or many connections do not affect it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys::{self, Loopback};

/// An attempt in progress.
pub struct Dial {
    port: u16,
    to: Loopback,
    socket: OwnedFd,
}

/// The result of an attempt.
pub enum Dialed {
    /// In progress: wait until its socket is writable.
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
