//! Dials in the loop: one waits for its socket, never the loop for one.

use std::io;

use guest_proto::{Carrier, FromGuest};

use super::Reactor;
use super::operation::Refused;
use crate::connection::Role;
use crate::dial::{Dial, Dialed};
use crate::poll::{Id, Interest, Token};

impl Reactor {
    /// Begins to connect to a port for the connection `id`.
    pub(super) fn dial(&mut self, id: Id, port: u16) -> Result<(), Refused> {
        self.connection(id)?.role = Role::Dialing;
        self.dial_went(id, Dial::begin(port));
        Ok(())
    }

    /// The socket of the dial for connection `id` has something to tell.
    pub(super) fn go_on_dialing(&mut self, id: Id) {
        if let Some(dial) = self.dials.remove(&id) {
            self.dial_went(id, dial.go_on());
        }
    }

    fn dial_went(&mut self, id: Id, dialed: Dialed) {
        let (answer, socket) = match dialed {
            Dialed::Pending(dial) => match self.wait_for(id, dial) {
                Ok(()) => return,
                Err(error) => (failed(&error), None),
            },
            // What the host holds on to would be watched on, for nobody.
            Dialed::Connected(socket) => match self.poll.remove(&socket) {
                Ok(()) => (FromGuest::Dialed { carrier: Carrier::Descriptor }, Some(socket)),
                Err(error) => (failed(&error), None),
            },
            Dialed::Closed => (FromGuest::PortClosed, None),
            Dialed::Failed(error) => (failed(&error), None),
        };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match socket {
            Some(socket) => connection.hand_over(&answer, socket),
            None => connection.conclude(&answer),
        }
        self.touched_connections.push(id);
    }

    /// On loopback it is mostly decided already; the event comes with the next turn then.
    fn wait_for(&mut self, id: Id, dial: Dial) -> io::Result<()> {
        self.poll.add(dial.socket(), Token::Dial(id), Interest::WriteEdge)?;
        self.dials.insert(id, dial);
        Ok(())
    }
}

fn failed(error: &io::Error) -> FromGuest {
    FromGuest::Refused { reason: format!("cannot connect inside the sandbox: {error}") }
}
