//! The framing on a byte stream: a preface with the version, then frames of a 32-bit little-endian length and a
//! postcard payload.

use std::fmt;

use serde::{Serialize, de::DeserializeOwned};

use crate::{CHUNK_MAX, FRAME_MAX};

/// Two bytes of magic and the version.
pub const PREFACE_LEN: usize = 4;

const MAGIC: [u8; 2] = *b"SK";
const HEADER_LEN: usize = 4;

/// The preface for `version`; 0 refuses the peer's.
pub fn preface(version: u16) -> [u8; PREFACE_LEN] {
    let [low, high] = version.to_le_bytes();
    [MAGIC[0], MAGIC[1], low, high]
}

/// The version in a preface.
pub fn read_preface(bytes: [u8; PREFACE_LEN]) -> Result<u16, DecodeError> {
    if bytes[..2] != MAGIC {
        return Err(DecodeError::NotOurs);
    }
    Ok(u16::from_le_bytes([bytes[2], bytes[3]]))
}

/// Appends one frame to `out`.
///
/// # Panics
/// If the message is larger than [`FRAME_MAX`]: senders limit their messages.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_LEN]);
    let taken = std::mem::take(out);
    // Extending a Vec cannot fail, and our messages have no map or sequence of unknown length.
    let mut taken = postcard::to_extend(message, taken).expect("messages always encode");
    let len = taken.len() - start - HEADER_LEN;
    assert!(len <= FRAME_MAX, "a message of {len} bytes does not fit a frame");
    taken[start..start + HEADER_LEN].copy_from_slice(&(len as u32).to_le_bytes());
    *out = taken;
}

/// The variant indexes of `ToGuest::Stdin`, `FromGuest::Stdout` and `FromGuest::Stderr`; a test compares them.
const STDIN: u8 = 0;
const STDOUT: u8 = 5;
const STDERR: u8 = 6;

/// Appends the frame of a `ToGuest::Stdin`, with the same result as [`encode`], but copies the bytes once and at once.
pub fn encode_stdin(bytes: &[u8], out: &mut Vec<u8>) {
    encode_block(&[STDIN], bytes, out);
}

/// The stream of a block of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// The same for a `FromGuest::Stdout` or `FromGuest::Stderr`.
pub fn encode_stream(stream: Stream, offset: u64, data: &[u8], out: &mut Vec<u8>) {
    let mut head = vec![match stream {
        Stream::Stdout => STDOUT,
        Stream::Stderr => STDERR,
    }];
    push_varint(offset, &mut head);
    encode_block(&head, data, out);
}

/// A frame whose payload ends with a block of bytes.
fn encode_block(head: &[u8], block: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.reserve(HEADER_LEN + head.len() + VARINT_MAX + block.len());
    out.extend_from_slice(&[0; HEADER_LEN]);
    out.extend_from_slice(head);
    push_varint(block.len() as u64, out);
    out.extend_from_slice(block);
    let len = out.len() - start - HEADER_LEN;
    assert!(len <= FRAME_MAX, "a message of {len} bytes does not fit a frame");
    out[start..start + HEADER_LEN].copy_from_slice(&(len as u32).to_le_bytes());
}

const VARINT_MAX: usize = 10;

/// A number in postcard's encoding: seven bits per byte, lowest first.
fn push_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Collects bytes from a stream and yields whole messages.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    consumed: usize,
}

impl FrameReader {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes from the stream. Consumed bytes are dropped first, so the buffer never grows beyond one frame and one
    /// read, wherever a hostile peer splits its frames.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.let_go();
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the bytes that `read` reads, in at most one call. The rest of a long frame is read directly into place;
    /// everything else goes through `small`.
    pub fn fill<E>(
        &mut self,
        small: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.let_go();
        // At most a chunk at once, so that a peer that announces much and sends little costs little.
        let missing = self.missing().min(CHUNK_MAX);
        if missing <= small.len() {
            let count = read(small)?;
            self.buffer.extend_from_slice(&small[..count]);
            return Ok(count);
        }
        let begun = self.buffer.len();
        self.buffer.resize(begun + missing, 0);
        let result = read(&mut self.buffer[begun..]);
        let count = result.as_ref().map_or(0, |count| *count);
        self.buffer.truncate(begun + count.min(missing));
        result
    }

    /// Drops consumed bytes.
    fn let_go(&mut self) {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
    }

    /// How many bytes are missing of a frame whose length is known.
    fn missing(&self) -> usize {
        let rest = &self.buffer[self.consumed..];
        let Some(header) = rest.first_chunk::<HEADER_LEN>() else { return 0 };
        let len = u32::from_le_bytes(*header) as usize;
        if len > FRAME_MAX { 0 } else { (HEADER_LEN + len).saturating_sub(rest.len()) }
    }

    /// Whether all bytes were consumed.
    pub fn is_empty(&self) -> bool {
        self.consumed == self.buffer.len()
    }

    /// Takes raw bytes from the front: the preface, before any frame.
    pub fn take_raw<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.buffer[self.consumed..].first_chunk::<N>().copied()?;
        self.consumed += N;
        Some(bytes)
    }

    /// All bytes after the last message: the rest of a stream may be unframed.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.buffer.split_off(self.consumed)
    }

    /// The next complete message; `None` until enough bytes have arrived. After an error the stream is out of sync and
    /// must be closed.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, DecodeError> {
        let rest = &self.buffer[self.consumed..];
        let Some(header) = rest.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*header) as usize;
        if len > FRAME_MAX {
            return Err(DecodeError::TooLong { len });
        }
        let Some(payload) = rest.get(HEADER_LEN..HEADER_LEN + len) else {
            return Ok(None);
        };
        let (message, left) =
            postcard::take_from_bytes(payload).map_err(|_| DecodeError::Malformed)?;
        if !left.is_empty() {
            return Err(DecodeError::Malformed);
        }
        self.consumed += HEADER_LEN + len;
        Ok(Some(message))
    }
}

/// Why the peer's bytes are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The preface is not ours.
    NotOurs,
    /// The frame's declared length exceeds the limit.
    TooLong { len: usize },
    /// The payload is not a known message.
    Malformed,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs => write!(f, "the peer does not speak the guest protocol"),
            Self::TooLong { len } => {
                write!(f, "a frame of {len} bytes is over the limit of {FRAME_MAX}")
            }
            Self::Malformed => write!(f, "a frame holds no known message"),
        }
    }
}

impl std::error::Error for DecodeError {}
