//! Pending connections in the loop, which never blocks on one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use guest_proto::{Carrier, FromGuest};

use super::Reactor;
use super::operation::Refused;
use crate::carry::{Carry, Over};
use crate::connection::Role;
use crate::dial::{Dial, Dialed};
use crate::poll::{Id, Interest, Poll, Token};

impl Reactor {
    /// Starts connecting to a port for the connection `id`.
    pub(super) fn dial(&mut self, id: Id, port: u16, carrier: Carrier) -> Result<(), Refused> {
        self.connection(id)?.role = Role::Dialing(carrier);
        self.dial_went(id, Dial::begin(port));
        Ok(())
    }

    /// An event on the dialing socket for connection `id`.
    pub(super) fn go_on_dialing(&mut self, id: Id) {
        if let Some(dial) = self.dials.remove(&id) {
            self.dial_went(id, dial.go_on());
        }
    }

    fn dial_went(&mut self, id: Id, dialed: Dialed) {
        let answer = match dialed {
            Dialed::Pending(dial) => match self.wait_for(id, dial) {
                Ok(()) => return,
                Err(error) => failed(&error),
            },
            // Otherwise the socket, which the host keeps open, would still be watched.
            Dialed::Connected(socket) => match self.poll.remove(&socket) {
                Ok(()) => return self.give(id, socket),
                Err(error) => failed(&error),
            },
            Dialed::Closed => FromGuest::PortClosed,
            Dialed::Failed(error) => failed(&error),
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.conclude(&answer);
            self.touched_connections.push(id);
        }
    }

    /// Passes the connected socket to the host, in the way that it requested.
    fn give(&mut self, id: Id, socket: OwnedFd) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Role::Dialing(carrier) = connection.role else { return };
        let answer = FromGuest::Dialed { carrier };
        match carrier {
            Carrier::Descriptor => connection.hand_over(&answer, socket),
            Carrier::Connection => {
                connection.say(&answer);
                connection.role = Role::Carrying;
                self.carries.insert(id, Carry::new(socket));
            }
        }
        self.touched_connections.push(id);
    }

    /// On loopback the result is usually known already; then the event comes with the next turn.
    fn wait_for(&mut self, id: Id, dial: Dial) -> io::Result<()> {
        self.poll.add(dial.socket(), Token::Dial(id), Interest::WriteEdge)?;
        self.dials.insert(id, dial);
        Ok(())
    }
}

/// Copies bytes, and updates what the server's socket is watched for; returns what to watch the host's for.
pub(super) fn carry_on(
    poll: &Poll,
    id: Id,
    carry: &mut Carry,
    host: &OwnedFd,
) -> Result<Interest, Over> {
    carry.go_on(host.as_fd())?;
    let wanted = carry.server_interest();
    let token = Token::Carry(id);
    let changed = match (carry.watched, wanted) {
        (before, now) if before == now => Ok(()),
        (None, Some(interest)) => poll.add(carry.server(), token, interest),
        (Some(_), Some(interest)) => poll.change(carry.server(), token, interest),
        (_, None) => poll.remove(carry.server()),
    };
    carry.watched = wanted;
    changed.map_err(|_| Over)?;
    Ok(carry.host_interest())
}

fn failed(error: &io::Error) -> FromGuest {
    FromGuest::Refused { reason: format!("cannot connect inside the sandbox: {error}") }
}
