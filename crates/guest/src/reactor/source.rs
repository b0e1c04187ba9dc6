//! Connections of the host: it connects to us, or we to it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use super::Reactor;
use crate::connection::{Connection, Role};
use crate::dial_back::DialBack;
use crate::poll::{Id, Interest, Poll, Token};
use crate::sys;

/// More than the host ever opens at once; the oldest without a request is closed for a new one.
const CONNECTIONS_MAX: usize = 4096;

/// How long accepting pauses after a failure (usually no free descriptors): the connection stays in the queue, and
/// would otherwise wake the loop at once again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub enum Source {
    Listening {
        socket: OwnedFd,
        /// When to accept connections again, after a failure.
        again: Option<Instant>,
    },
    Dialing(DialBack),
}

impl Source {
    pub fn listening(socket: OwnedFd) -> Self {
        Self::Listening { socket, again: None }
    }

    pub(super) fn watch(&self, poll: &Poll) -> io::Result<()> {
        match self {
            Self::Listening { socket, .. } => poll.add(socket, Token::Listen, Interest::Read),
            Self::Dialing(_) => Ok(()),
        }
    }

    pub(super) fn next_tick(&self) -> Option<Instant> {
        match self {
            Self::Listening { again, .. } => *again,
            Self::Dialing(dial_back) => dial_back.next_tick(),
        }
    }
}

impl Reactor {
    pub(super) fn accept(&mut self) {
        let Source::Listening { socket: listen, again } = &mut self.source else { return };
        let socket = match sys::accept(listen.as_fd()) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => {
                if self.poll.change(&*listen, Token::Listen, Interest::Nothing).is_ok() {
                    *again = Some(Instant::now() + ACCEPT_PAUSE);
                }
                return;
            }
        };
        if self.connections.len() >= CONNECTIONS_MAX {
            let idle = self.connections.iter().find(|(_, connection)| {
                matches!(connection.role, Role::Greeting | Role::Requesting)
            });
            let Some((&idle, _)) = idle else { return };
            self.drop_connection(idle);
        }
        if let Some(id) = self.take_up(socket) {
            // The request has usually arrived with the connection.
            self.serve(id);
        }
    }

    fn take_up(&mut self, socket: OwnedFd) -> Option<Id> {
        let id = self.new_id();
        self.poll.add(&socket, Token::Connection(id), Interest::Read).ok()?;
        self.connections.insert(id, Connection::new(socket));
        Some(id)
    }

    /// Handles what is due for further connections.
    pub(super) fn tick_source(&mut self, now: Instant) {
        match &mut self.source {
            Source::Listening { socket, again } => {
                if again.is_some_and(|at| now >= at) {
                    let watched = self.poll.change(&*socket, Token::Listen, Interest::Read);
                    *again = watched.is_err().then(|| now + ACCEPT_PAUSE);
                }
            }
            Source::Dialing(dial_back) => {
                let wanted = dial_back.wanted(now);
                (0..wanted).try_for_each(|_| self.dial_host(now)).unwrap_or_default();
            }
        }
    }

    /// `None` if the host is not available now.
    fn dial_host(&mut self, now: Instant) -> Option<()> {
        let Source::Dialing(dial_back) = &self.source else { return None };
        let id = dial_back.connect().ok().and_then(|socket| self.take_up(socket));
        let Source::Dialing(dial_back) = &mut self.source else { return None };
        match id {
            Some(id) => dial_back.opened(id),
            None => dial_back.failed(now),
        }
        id.map(drop)
    }

    /// The host has sent something on this connection.
    pub(super) fn taken(&mut self, id: Id) {
        if let Source::Dialing(dial_back) = &mut self.source {
            dial_back.taken(id, Instant::now());
        }
    }

    pub(super) fn lost(&mut self, id: Id) {
        if let Source::Dialing(dial_back) = &mut self.source {
            dial_back.lost(id, Instant::now());
        }
    }
}
