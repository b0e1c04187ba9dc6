//! The framing of output in a segment: a fixed-length header, then the bytes.
//!
//! A header has its own checksum, so that a torn write after a crash, or a disk full of zeros, is never mistaken for a
//! record. The bytes themselves are not checked: data taken by `write(2)` is read back correctly as long as the machine
//! does not lose power, and after that no process is left that a journal could mislead.

use crate::{Offsets, OutputStream};

pub const HEADER_LEN: usize = 16;

/// Maximum number of bytes in one record; longer output is split.
pub const RECORD_MAX: usize = 64 * 1024;

const STDERR: u32 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub stream: OutputStream,
    /// Of the first byte, in its stream.
    pub offset: u64,
    pub len: u32,
}

impl Header {
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let stream = match self.stream {
            OutputStream::Stdout => 0,
            OutputStream::Stderr => STDERR,
        };
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&(self.len | stream).to_le_bytes());
        bytes[4..12].copy_from_slice(&self.offset.to_le_bytes());
        let check = check(&bytes[..12]);
        bytes[12..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// `None`: not a header.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let [a, b, c, d, o0, o1, o2, o3, o4, o5, o6, o7, k0, k1, k2, k3] = *bytes;
        if u32::from_le_bytes([k0, k1, k2, k3]) != check(&bytes[..12]) {
            return None;
        }
        let word = u32::from_le_bytes([a, b, c, d]);
        let stream = if word & STDERR == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
        let offset = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        let len = word & !STDERR;
        let fits = (1..=RECORD_MAX).contains(&(len as usize));
        (fits && offset.checked_add(u64::from(len)).is_some()).then_some(Self {
            stream,
            offset,
            len,
        })
    }

    /// The offset after its last byte.
    pub fn end(self) -> u64 {
        self.offset + u64::from(self.len)
    }

    /// The record's length in the file.
    pub fn size(self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.len)
    }
}

/// FNV-1a: never 0 for zeros, cheap for a few bytes.
pub fn check(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The offset of one stream.
pub fn of(offsets: &Offsets, stream: OutputStream) -> u64 {
    match stream {
        OutputStream::Stdout => offsets.stdout,
        OutputStream::Stderr => offsets.stderr,
    }
}

pub fn of_mut(offsets: &mut Offsets, stream: OutputStream) -> &mut u64 {
    match stream {
        OutputStream::Stdout => &mut offsets.stdout,
        OutputStream::Stderr => &mut offsets.stderr,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(
            stderr: bool, offset in 0..u64::MAX / 2, len in 1..=RECORD_MAX as u32,
        ) {
            let stream = if stderr { OutputStream::Stderr } else { OutputStream::Stdout };
            let header = Header { stream, offset, len };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        #[test]
        fn no_other_bytes_are_taken_for_a_header(bit in 0..HEADER_LEN * 8, offset: u32) {
            let header = Header { stream: OutputStream::Stdout, offset: offset.into(), len: 77 };
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&bytes), None);
        }
    }

    #[test]
    fn zeros_are_no_header() {
        assert_eq!(Header::decode(&[0; HEADER_LEN]), None);
    }
}
