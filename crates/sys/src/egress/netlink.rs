//! Netlink messages: written one after the other, sent as one, and answered at once.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// Of a message: length, type, flags, sequence number, port.
const HEAD_BYTES: usize = 16;
/// Of an attribute: length and type.
const ATTRIBUTE_BYTES: usize = 4;
const ALIGNED_TO: usize = 4;
const ANSWER_MAX_BYTES: usize = 32 * 1024;

pub const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
/// Makes what is missing, and keeps or replaces what is there.
pub const CREATE: u16 = REQUEST | libc::NLM_F_CREATE as u16;
pub const REPLACE: u16 = CREATE | libc::NLM_F_REPLACE as u16;
/// Only a message that asks for it is answered if it succeeds.
const ACKNOWLEDGE: u16 = libc::NLM_F_ACK as u16;
const NESTED: u16 = 1 << 15;

/// Messages to be sent together.
#[derive(Default)]
pub struct Messages {
    bytes: Vec<u8>,
    /// Where the last one starts.
    last: usize,
}

impl Messages {
    /// Adds a message: its type, its flags, the head that its type wants, and attributes.
    pub fn add(&mut self, kind: u16, flags: u16, head: &[u8], fill: impl FnOnce(&mut Self)) {
        self.last = self.bytes.len();
        let start = self.last;
        self.bytes.extend([0; ALIGNED_TO]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend([0; HEAD_BYTES - 8]);
        self.bytes.extend(head);
        self.align();
        fill(self);
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = (ATTRIBUTE_BYTES + value.len()) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.align();
    }

    pub fn text(&mut self, kind: u16, text: &str) {
        self.attribute(kind, &[text.as_bytes(), &[0]].concat());
    }

    /// A number in network byte order, as nftables wants them.
    pub fn number(&mut self, kind: u16, number: u32) {
        self.attribute(kind, &number.to_be_bytes());
    }

    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.attribute(kind | NESTED, &[]);
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNED_TO), 0);
    }

    /// Marks the last message as the one whose success is confirmed.
    pub fn acknowledge_last(&mut self) {
        let at = self.last + 6;
        let flags = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]) | ACKNOWLEDGE;
        self.bytes[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
    }

    /// Sends all to the kernel; an error is that of the first message that failed.
    pub fn send(&self, protocol: Option<Protocol>) -> io::Result<()> {
        let kernel = connect(protocol)?;
        send(&kernel, &self.bytes, SendFlags::empty())?;
        // The kernel has done the work within `send`: all answers are there.
        let mut buffer = vec![0; ANSWER_MAX_BYTES];
        let mut confirmed = false;
        loop {
            let length = match recv(&kernel, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, length)) => length.min(buffer.len()),
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            };
            for error in errors(&buffer[..length]) {
                match error {
                    0 => confirmed = true,
                    error => return Err(io::Error::from_raw_os_error(-error)),
                }
            }
        }
        if confirmed { Ok(()) } else { Err(io::Error::other("the kernel did not confirm it")) }
    }
}

fn connect(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?)
}

/// The error number of each NLMSG_ERROR; 0 is a confirmation.
fn errors(mut bytes: &[u8]) -> Vec<i32> {
    let mut found = Vec::new();
    while let Some((head, _)) = bytes.split_at_checked(HEAD_BYTES) {
        let number = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
        let length = u32::from_ne_bytes(number(0)) as usize;
        let kind = u16::from_ne_bytes([head[4], head[5]]);
        if length < HEAD_BYTES || length > bytes.len() {
            break;
        }
        if let (true, Some(error)) =
            (i32::from(kind) == libc::NLMSG_ERROR, bytes.get(HEAD_BYTES..HEAD_BYTES + 4))
        {
            found.push(i32::from_ne_bytes([error[0], error[1], error[2], error[3]]));
        }
        let next = length.next_multiple_of(ALIGNED_TO).min(bytes.len());
        bytes = &bytes[next..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_attributes_have_their_lengths_and_are_aligned() {
        let mut messages = Messages::default();
        messages.add(7, REQUEST, &[1], |message| {
            message.nested(2, |inner| inner.text(3, "ab"));
        });
        messages.acknowledge_last();
        let bytes = &messages.bytes;
        assert_eq!(bytes.len(), 16 + 4 + 4 + 8);
        assert_eq!(bytes[..4], 32u32.to_ne_bytes());
        assert_eq!(bytes[6..8], (REQUEST | ACKNOWLEDGE).to_ne_bytes());
        assert_eq!(bytes[20..22], 12u16.to_ne_bytes());
        assert_eq!(bytes[22..24], (2 | NESTED).to_ne_bytes());
        assert_eq!(bytes[24..26], 7u16.to_ne_bytes());
        assert_eq!(&bytes[28..31], b"ab\0");
    }

    #[test]
    fn every_error_of_an_answer_is_read_and_a_torn_one_is_nothing() {
        let answer = |error: i32| {
            let mut bytes = [0; 36];
            bytes[..4].copy_from_slice(&36u32.to_ne_bytes());
            bytes[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
            bytes[16..20].copy_from_slice(&error.to_ne_bytes());
            bytes
        };
        assert_eq!(errors(&[answer(0), answer(-17)].concat()), [0, -17]);
        assert_eq!(errors(&answer(-1)[..30]), Vec::<i32>::new());
        assert_eq!(errors(&[0; 16]), Vec::<i32>::new());
    }
}
