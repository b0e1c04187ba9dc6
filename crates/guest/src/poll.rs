//! epoll, and the target of an event. Ids are never reused, so a queued event whose target is gone is dropped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::sys;

/// Identifies a connection, an exec or a pipe that is only drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(pub u64);

/// The target of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Listen,
    Signals,
    Lifeline,
    Connection(Id),
    Stdin(Id),
    Stdout(Id),
    Stderr(Id),
    Drain(Id),
    /// The socket that a connection dials with.
    Dial(Id),
    /// The private descriptors of a shell, and its output while no command runs.
    Shell(Id),
    /// The server's socket of a connection that goes through the guest.
    Carry(Id),
    /// A keeper's report about its command.
    Keeper(Id),
}

const KIND_BITS: u32 = 4;

impl Token {
    fn encode(self) -> u64 {
        let (kind, id) = match self {
            Self::Listen => (0, 0),
            Self::Signals => (1, 0),
            Self::Lifeline => (2, 0),
            Self::Connection(Id(id)) => (3, id),
            Self::Stdin(Id(id)) => (4, id),
            Self::Stdout(Id(id)) => (5, id),
            Self::Stderr(Id(id)) => (6, id),
            Self::Drain(Id(id)) => (7, id),
            Self::Dial(Id(id)) => (8, id),
            Self::Shell(Id(id)) => (9, id),
            Self::Carry(Id(id)) => (10, id),
            Self::Keeper(Id(id)) => (11, id),
        };
        id << KIND_BITS | kind
    }

    fn decode(data: u64) -> Self {
        let id = Id(data >> KIND_BITS);
        match data & ((1 << KIND_BITS) - 1) {
            0 => Self::Listen,
            1 => Self::Signals,
            2 => Self::Lifeline,
            3 => Self::Connection(id),
            4 => Self::Stdin(id),
            5 => Self::Stdout(id),
            6 => Self::Stderr(id),
            7 => Self::Drain(id),
            8 => Self::Dial(id),
            9 => Self::Shell(id),
            10 => Self::Carry(id),
            _ => Self::Keeper(id),
        }
    }
}

/// When an event is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Once, when the other side is gone; the kernel always reports that.
    Nothing,
    /// As long as there is something to read.
    Read,
    /// As long as there is room to write.
    Write,
    /// As long as there is something to read or room to write.
    ReadWrite,
    /// Once whenever more can be read; the owner reads until nothing is left or remembers to.
    ReadEdge,
    /// Once whenever there is room again.
    WriteEdge,
}

impl Interest {
    fn bits(self) -> u32 {
        let bits = match self {
            Self::Nothing => libc::EPOLLET,
            Self::Read => libc::EPOLLIN,
            Self::Write => libc::EPOLLOUT,
            Self::ReadWrite => libc::EPOLLIN | libc::EPOLLOUT,
            Self::ReadEdge => libc::EPOLLIN | libc::EPOLLET,
            Self::WriteEdge => libc::EPOLLOUT | libc::EPOLLET,
        };
        bits.cast_unsigned()
    }
}

pub struct Poll {
    epoll: OwnedFd,
}

/// How many events one wait returns; the rest follows with the next.
const EVENTS_MAX: usize = 32;

impl Poll {
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: sys::epoll_create()? })
    }

    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_fd(), token, interest)
    }

    pub fn change(&self, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_fd(), token, interest)
    }

    /// Stops watching. Closing a descriptor is sufficient only if there is no copy of it.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        sys::epoll_control(self.epoll.as_fd(), libc::EPOLL_CTL_DEL, fd.as_fd(), 0, 0)
    }

    fn control(
        &self,
        operation: i32,
        fd: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        sys::epoll_control(self.epoll.as_fd(), operation, fd, interest.bits(), token.encode())
    }

    /// Waits for events, at most for `timeout` (rounded up, so that a deadline has passed then).
    pub fn wait(
        &self,
        timeout: Option<Duration>,
    ) -> io::Result<impl Iterator<Item = Token> + use<>> {
        let timeout_ms = match timeout {
            None => -1,
            Some(timeout) => i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX),
        };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let count = sys::epoll_wait(self.epoll.as_fd(), &mut events, timeout_ms)?;
        Ok(events.into_iter().take(count).map(|event| Token::decode(event.u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_survives_the_kernel() {
        let id = Id(u64::MAX >> KIND_BITS);
        for token in [
            Token::Listen,
            Token::Signals,
            Token::Lifeline,
            Token::Connection(id),
            Token::Stdin(id),
            Token::Stdout(id),
            Token::Stderr(id),
            Token::Drain(id),
            Token::Dial(id),
            Token::Shell(id),
            Token::Carry(id),
            Token::Keeper(id),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
