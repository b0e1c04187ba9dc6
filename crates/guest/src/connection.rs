//! One connection of the host: a preface, one request, and the operation's answers.
//!
//! Answers are collected and sent at the end of a turn of the loop, so that an exec's last output and its end are sent
//! in one call and wake the host once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use guest_proto::{
    CHUNK_MAX, Carrier, DecodeError, FrameReader, FromGuest, LEAF_FDS_MAX, OLDEST_VERSION, Op,
    PREFACE_LEN, Stream, ToGuest, VERSION, encode, encode_stream, preface, read_preface,
};

use crate::poll::{Id, Interest};
use crate::sys;

/// How much one look at a connection reads, unless more is known to follow: most requests are smaller, and every stack
/// page ever used stays allocated.
const READ_LEN: usize = 2 * 1024;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The preface has not arrived.
    Greeting,
    /// The request has not arrived.
    Requesting,
    /// It transfers the input and output of an exec.
    Watching(Id),
    /// It requested the end of the sandbox and waits for it.
    Terminating,
    /// It waits for a connection to a sandbox port, to be passed to the host in this way.
    Dialing(Carrier),
    /// It transfers the bytes of such a connection.
    Carrying,
    /// It receives the bytes of a program.
    Receiving,
    /// It waits for the one answer to its request.
    Awaiting,
    /// Everything was answered; it closes when the rest is sent.
    Closing,
}

pub struct Connection {
    socket: OwnedFd,
    reader: FrameReader,
    descriptors: Vec<OwnedFd>,
    out: Vec<u8>,
    sent: usize,
    /// Sent with the next bytes.
    passed_on: Option<OwnedFd>,
    pub role: Role,
    /// What the loop watches this connection for.
    pub watched: Interest,
}

/// The connection is unusable: the peer is gone, or violates the protocol.
#[derive(Debug)]
pub struct Broken;

impl From<DecodeError> for Broken {
    fn from(_: DecodeError) -> Self {
        Self
    }
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            reader: FrameReader::new(),
            descriptors: Vec::new(),
            out: Vec::new(),
            sent: 0,
            passed_on: None,
            role: Role::Greeting,
            watched: Interest::Read,
        }
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Reads what has arrived. Descriptors are kept only while a request may bring them.
    pub fn receive(&mut self) -> Result<(), Broken> {
        let mut buffer = [0u8; READ_LEN];
        let Self { socket, reader, descriptors, .. } = self;
        let received =
            reader.fill(&mut buffer, |space| sys::receive(socket.as_fd(), space, descriptors));
        match received {
            Ok(0) => return Err(Broken),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(Broken),
        }
        let may_bring = matches!(self.role, Role::Greeting | Role::Requesting);
        if !may_bring || self.descriptors.len() > LEAF_FDS_MAX {
            self.descriptors.clear();
        }
        Ok(())
    }

    /// Reads the preface, and answers with the common version. `Ok(false)`: it is incomplete.
    pub fn greet(&mut self) -> Result<bool, Broken> {
        let Some(bytes) = self.reader.take_raw::<PREFACE_LEN>() else {
            return Ok(false);
        };
        let version = read_preface(bytes)?;
        if (OLDEST_VERSION..=VERSION).contains(&version) {
            self.out.extend_from_slice(&preface(version));
            self.role = Role::Requesting;
        } else {
            self.out.extend_from_slice(&preface(0));
            self.role = Role::Closing;
        }
        Ok(true)
    }

    /// The request, once it is complete.
    pub fn next_request(&mut self) -> Result<Option<Op>, Broken> {
        Ok(self.reader.next_message()?)
    }

    /// The next message about the exec that this connection watches.
    pub fn next_message(&mut self) -> Result<Option<ToGuest>, Broken> {
        Ok(self.reader.next_message()?)
    }

    /// The descriptors that came with the request.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Sends an exec's output from this offset on.
    pub fn pass_on(&mut self, stream: Stream, offset: u64, data: &[u8]) {
        encode_stream(stream, offset, data, &mut self.out);
    }

    pub fn say(&mut self, message: &FromGuest) {
        encode(message, &mut self.out);
    }

    /// Sends a final message.
    pub fn conclude(&mut self, message: &FromGuest) {
        self.say(message);
        self.role = Role::Closing;
    }

    /// Sends a final message together with a descriptor.
    pub fn hand_over(&mut self, message: &FromGuest, descriptor: OwnedFd) {
        self.passed_on = Some(descriptor);
        self.conclude(message);
    }

    /// Whether the host has not sent anything yet.
    pub fn is_idle(&self) -> bool {
        self.role == Role::Greeting && self.is_silent()
    }

    /// Whether nothing unexpected has arrived.
    pub fn is_silent(&self) -> bool {
        self.reader.is_empty()
    }

    /// Whether more output may be added: otherwise unread output stays in its window.
    pub fn has_room(&self) -> bool {
        self.out.len() - self.sent < CHUNK_MAX
    }

    /// Sends buffered data, as far as the socket has room; returns what to watch for.
    pub fn flush(&mut self) -> Result<Interest, Broken> {
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            let sent = match &self.passed_on {
                None => sys::send(self.socket.as_fd(), rest),
                Some(descriptor) => sys::send_with(self.socket.as_fd(), rest, descriptor.as_fd()),
            };
            match sent {
                Ok(len) => {
                    self.sent += len;
                    self.passed_on = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Interest::ReadWrite);
                }
                Err(_) => return Err(Broken),
            }
        }
        self.out = Vec::new();
        self.sent = 0;
        match self.role {
            Role::Closing => Err(Broken),
            Role::Greeting
            | Role::Requesting
            | Role::Watching(_)
            | Role::Terminating
            | Role::Dialing(_)
            | Role::Carrying
            | Role::Receiving
            | Role::Awaiting => Ok(Interest::Read),
        }
    }
}
