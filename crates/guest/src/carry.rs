//! Copies the bytes of a connection to a sandbox port between the server's socket and the host's connection, for hosts
//! that cannot receive a descriptor.
//!
//! Each direction ends separately: when one side has sent everything, the other is told so and may continue for as long
//! as it likes. Bytes are read only after those before them were written, so a connection holds one piece per
//! direction, and only while a peer does not read. Data that the host sent before it closed still reaches the server.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::poll::Interest;
use crate::sys::{self, Peer};

/// Chunk size.
const PIECE_LEN: usize = 16 * 1024;
/// How many chunks one turn moves in one direction, so that a flood delays nobody.
const PIECES_MAX: usize = 16;

pub struct Carry {
    server: OwnedFd,
    to_server: Flow,
    to_host: Flow,
    /// What the loop watches the server's socket for; `None` if nothing is of interest, because the end of a connection
    /// would be reported again and again.
    pub watched: Option<Interest>,
}

/// The connection is finished.
#[derive(Debug)]
pub struct Over;

impl Carry {
    pub fn new(server: OwnedFd) -> Self {
        Self { server, to_server: Flow::default(), to_host: Flow::default(), watched: None }
    }

    pub fn server(&self) -> &OwnedFd {
        &self.server
    }

    /// Moves all data that can be moved.
    pub fn go_on(&mut self, host: BorrowedFd<'_>) -> Result<(), Over> {
        self.to_server.go_on(host, self.server.as_fd()).map_err(|_| Over)?;
        self.to_host.go_on(self.server.as_fd(), host).map_err(|_| Over)?;
        if self.to_server.end != End::Told {
            return Ok(());
        }
        // A host that only shut down its half is still there; one that closed will never read an answer.
        let hears = self.to_host.end != End::Told && sys::peer(host) == Peer::There;
        if hears { Ok(()) } else { Err(Over) }
    }

    pub fn host_interest(&self) -> Interest {
        interest(&self.to_server, &self.to_host).unwrap_or(Interest::Nothing)
    }

    pub fn server_interest(&self) -> Option<Interest> {
        interest(&self.to_host, &self.to_server)
    }
}

/// What to watch a socket for that is the source of one flow and the destination of the other.
fn interest(from: &Flow, to: &Flow) -> Option<Interest> {
    match (from.takes_in(), to.has_unsent()) {
        (true, true) => Some(Interest::ReadWrite),
        (true, false) => Some(Interest::Read),
        (false, true) => Some(Interest::Write),
        (false, false) => None,
    }
}

/// One direction.
#[derive(Default)]
struct Flow {
    unsent: Vec<u8>,
    end: End,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    NotYet,
    Heard,
    Told,
}

impl Flow {
    fn takes_in(&self) -> bool {
        self.end == End::NotYet && self.unsent.is_empty()
    }

    fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn go_on(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        for _ in 0..PIECES_MAX {
            let sent = send_all(to, &self.unsent)?;
            self.unsent.drain(..sent);
            if self.has_unsent() {
                return Ok(());
            }
            self.unsent = Vec::new();
            if self.end == End::Heard {
                sys::shut_down_sending(to);
                self.end = End::Told;
            }
            if !self.takes_in() || !self.take_in(from, to)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns whether there was data. Data that can be written at once is, without being buffered.
    fn take_in(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<bool> {
        let mut piece = [0u8; PIECE_LEN];
        match sys::read(from, &mut piece) {
            Ok(0) => self.end = End::Heard,
            Ok(len) => {
                let sent = send_all(to, &piece[..len])?;
                self.unsent = piece[sent..len].to_vec();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}

/// Writes as much as there is room for.
fn send_all(to: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match sys::send(to, &bytes[sent..]) {
            Ok(len) => sent += len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A carry, the host's end and the guest's end of its connection, and the server's end.
    fn carry() -> (Carry, UnixStream, UnixStream, UnixStream) {
        let (host, ours) = UnixStream::pair().expect("a pair of sockets");
        let (server, inner) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("a socket can be made non-blocking");
        inner.set_nonblocking(true).expect("a socket can be made non-blocking");
        (Carry::new(inner.into()), host, ours, server)
    }

    fn heard(mut stream: &UnixStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("the stream has an end");
        text
    }

    #[test]
    fn each_half_ends_by_itself_and_the_last_ends_all() {
        let (mut carry, mut host, ours, mut server) = carry();
        host.write_all(b"question").expect("there is room");
        host.shutdown(std::net::Shutdown::Write).expect("it is connected");
        carry.go_on(ours.as_fd()).expect("the answer is still to come");
        assert_eq!(heard(&server), "question");
        assert_eq!(carry.host_interest(), Interest::Nothing);
        server.write_all(b"answer").expect("there is room");
        drop(server);
        assert!(carry.go_on(ours.as_fd()).is_err(), "all is said");
        assert_eq!(heard(&host), "answer");
    }

    #[test]
    fn who_does_not_read_stops_the_other_and_nothing_is_lost() {
        let (mut carry, mut host, ours, server) = carry();
        host.set_nonblocking(true).expect("a socket can be made non-blocking");
        let mut written = 0;
        for _ in 0..100 {
            written += host.write(&[7; 64 * 1024]).unwrap_or(0);
            carry.go_on(ours.as_fd()).expect("both are there");
        }
        assert!(carry.to_server.unsent.len() <= PIECE_LEN);
        assert_eq!(carry.server_interest(), Some(Interest::ReadWrite));
        drop(host.shutdown(std::net::Shutdown::Write));
        // It keeps its socket open, because its own half is not finished when it has read everything.
        let reader = std::thread::spawn(move || (heard(&server).len(), server));
        while carry.to_server.end != End::Told {
            carry.go_on(ours.as_fd()).expect("both are there");
        }
        drop(carry);
        assert_eq!(reader.join().expect("it reads").0, written);
    }

    #[test]
    fn what_a_host_said_before_it_closed_reaches_a_server_that_is_slow() {
        let (mut carry, mut host, ours, server) = carry();
        server.shutdown(std::net::Shutdown::Write).expect("it is connected");
        host.set_nonblocking(true).expect("a socket can be made non-blocking");
        let mut written = 0;
        for _ in 0..100 {
            written += host.write(&[7; 64 * 1024]).unwrap_or(0);
            carry.go_on(ours.as_fd()).expect("the server has not read all");
        }
        drop(host);
        carry.go_on(ours.as_fd()).expect("the server has not read all");
        let reader = std::thread::spawn(move || heard(&server).len());
        while carry.go_on(ours.as_fd()).is_ok() {}
        drop(carry);
        assert_eq!(reader.join().expect("it reads"), written);
    }

    #[test]
    fn a_host_that_is_gone_ends_it_though_the_server_says_nothing() {
        let (mut carry, host, ours, _server) = carry();
        drop(host);
        assert!(carry.go_on(ours.as_fd()).is_err());
    }
}
