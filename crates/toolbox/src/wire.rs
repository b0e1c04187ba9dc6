//! The framing of messages on a byte stream: one byte for the kind, the length as 32 bits little-endian, and the
//! content.
//!
//! A frame is bounded before it is buffered: [`HEAD_MAX`] for a head or a failure, [`DATA_MAX`] for data. A violation
//! is [`Malformed`], and the stream is unusable. Decoding never panics.

use std::fmt;
use std::io::{Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::answer::{Failure, FailureKind};
use crate::request::Request;

/// Maximum size of a head, of a request and of an answer.
pub const HEAD_MAX: usize = 4 * 1024 * 1024;

/// Maximum number of data bytes in one frame.
pub const DATA_MAX: usize = 256 * 1024;

const FRAME_HEAD: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// JSON: a request, or an answer.
    Head(Vec<u8>),
    Data(Vec<u8>),
    /// The end of the message.
    End,
    /// JSON of a [`Failure`]; nothing follows.
    Failed(Vec<u8>),
}

const HEAD: u8 = b'H';
const DATA: u8 = b'D';
const END: u8 = b'E';
const FAILED: u8 = b'F';

/// The bytes are not a message of the toolbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes are no message of the toolbox")
    }
}

impl std::error::Error for Malformed {}

/// Appends one frame to `out`.
pub fn encode(frame: &Frame, out: &mut Vec<u8>) {
    let (kind, payload): (u8, &[u8]) = match frame {
        Frame::Head(json) => (HEAD, json),
        Frame::Data(bytes) => (DATA, bytes),
        Frame::End => (END, &[]),
        Frame::Failed(json) => (FAILED, json),
    };
    out.extend_from_slice(&frame_head(kind, payload.len()));
    out.extend_from_slice(payload);
}

/// The same for data, with one copy of the bytes.
pub fn encode_data(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(FRAME_HEAD + bytes.len());
    out.extend_from_slice(&frame_head(DATA, bytes.len()));
    out.extend_from_slice(bytes);
}

fn frame_head(kind: u8, len: usize) -> [u8; FRAME_HEAD] {
    debug_assert!(len <= HEAD_MAX, "senders bound what they put into a frame");
    let [a, b, c, d] = (len as u32).to_le_bytes();
    [kind, a, b, c, d]
}

/// The kind and the length, if they are valid.
fn read_frame_head(bytes: [u8; FRAME_HEAD]) -> Result<(u8, usize), Malformed> {
    let [kind, len @ ..] = bytes;
    let len = u32::from_le_bytes(len) as usize;
    let max = match kind {
        HEAD | FAILED => HEAD_MAX,
        DATA => DATA_MAX,
        END => 0,
        _ => return Err(Malformed),
    };
    if len > max { Err(Malformed) } else { Ok((kind, len)) }
}

fn frame(kind: u8, payload: Vec<u8>) -> Frame {
    match kind {
        HEAD => Frame::Head(payload),
        DATA => Frame::Data(payload),
        FAILED => Frame::Failed(payload),
        _ => Frame::End,
    }
}

/// Decodes frames from bytes as they arrive, for non-blocking readers.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    taken: usize,
}

impl Decoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no bytes are buffered.
    pub fn is_empty(&self) -> bool {
        self.taken == self.buffer.len()
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame; `None` until enough bytes have arrived.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        let rest = &self.buffer[self.taken..];
        let Some(head) = rest.first_chunk::<FRAME_HEAD>() else { return Ok(None) };
        let (kind, len) = read_frame_head(*head)?;
        let Some(payload) = rest.get(FRAME_HEAD..FRAME_HEAD + len) else { return Ok(None) };
        let payload = payload.to_vec();
        self.taken += FRAME_HEAD + len;
        Ok(Some(frame(kind, payload)))
    }
}

/// The toolbox's input: the request, then its data, which can be read like a file.
pub struct Input<'a> {
    from: Box<dyn Read + 'a>,
    /// The rest of the current frame.
    left: usize,
    state: WireState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WireState {
    Open,
    Ended,
    /// It broke off: readers must not mistake this for the end.
    Broken,
}

impl<'a> Input<'a> {
    pub fn over(from: impl Read + 'a) -> Self {
        Self { from: Box::new(from), left: 0, state: WireState::Open }
    }

    pub fn request(&mut self) -> Result<Request, Failure> {
        let (kind, len) = self.next_head()?;
        if kind != HEAD {
            return Err(Failure::new(FailureKind::Invalid, "it does not begin with a request"));
        }
        let mut json = vec![0; len];
        self.from.read_exact(&mut json).map_err(|_| broken_off())?;
        read_json(&json)
    }

    fn next_head(&mut self) -> Result<(u8, usize), Failure> {
        let mut head = [0; FRAME_HEAD];
        self.from.read_exact(&mut head).map_err(|_| broken_off())?;
        read_frame_head(head).map_err(|error| Failure::new(FailureKind::Invalid, error.to_string()))
    }

    /// Reads data; 0 at its end, and only there.
    pub fn data(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        let read = self.try_data(buffer);
        if read.is_err() {
            self.state = WireState::Broken;
        }
        read
    }

    fn try_data(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        while self.left == 0 {
            match self.state {
                WireState::Open => {}
                WireState::Ended => return Ok(0),
                WireState::Broken => return Err(broken_off()),
            }
            match self.next_head()? {
                (DATA, len) => self.left = len,
                (END, _) => self.state = WireState::Ended,
                (_, _) => return Err(Failure::new(FailureKind::Invalid, "data was expected")),
            }
        }
        let wanted = buffer.len().min(self.left);
        match self.from.read(&mut buffer[..wanted]) {
            Ok(0) if wanted > 0 => Err(broken_off()),
            Ok(len) => {
                self.left -= len;
                Ok(len)
            }
            Err(error) => Err(Failure::from_io(&error, None)),
        }
    }
}

/// For code that reads files. Broken input is an error here, too.
impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.data(buffer).map_err(std::io::Error::other)
    }
}

fn broken_off() -> Failure {
    Failure::new(FailureKind::BrokenOff, "what was sent broke off before its end")
}

fn read_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(json)
        .map_err(|error| Failure::new(FailureKind::Invalid, format!("no such request: {error}")))
}

/// The toolbox's output. If the receiver is gone, writing fails with EPIPE.
pub struct Output<'a> {
    to: Box<dyn Write + 'a>,
}

impl<'a> Output<'a> {
    pub fn over(to: impl Write + 'a) -> Self {
        Self { to: Box::new(to) }
    }

    /// The answer. Data may follow.
    pub fn head(&mut self, answer: &impl Serialize) -> Result<(), Failure> {
        let json = json_of(answer)?;
        if json.len() > HEAD_MAX {
            return Err(Failure::new(FailureKind::TooLarge, "the answer does not fit a message"));
        }
        self.send(HEAD, &json)
    }

    pub fn data(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        bytes.chunks(DATA_MAX).try_for_each(|chunk| self.send(DATA, chunk))
    }

    /// A line of JSON, as data.
    pub fn line(&mut self, item: &impl Serialize) -> Result<(), Failure> {
        let mut line = json_of(item)?;
        line.push(b'\n');
        self.data(&line)?;
        self.flush()
    }

    /// Sends everything written so far.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.to.flush().map_err(|error| Failure::from_io(&error, None))
    }

    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        self.send(END, &[])?;
        self.flush()
    }

    pub(crate) fn fail(&mut self, failure: &Failure) -> Result<(), Failure> {
        self.send(FAILED, &json_of(failure)?)?;
        self.flush()
    }

    fn send(&mut self, kind: u8, payload: &[u8]) -> Result<(), Failure> {
        let head = frame_head(kind, payload.len());
        let written = self.to.write_all(&head).and_then(|()| self.to.write_all(payload));
        written.map_err(|error| Failure::from_io(&error, None))
    }
}

/// For code that writes files: bytes are data.
impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(DATA_MAX)];
        self.data(bytes).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

fn json_of(item: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(item).map_err(|error| Failure::new(FailureKind::Other, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Operation;

    fn request() -> Request {
        Request::new(Operation::Stat { path: "x".into() })
    }

    fn asked(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&Frame::Head(serde_json::to_vec(&request()).unwrap()), &mut bytes);
        frames.iter().for_each(|frame| encode(frame, &mut bytes));
        bytes
    }

    #[test]
    fn a_request_and_its_data_arrive_however_they_are_cut() {
        let sent = [Frame::Data(b"ab".to_vec()), Frame::Data(b"c".to_vec()), Frame::End];
        let bytes = asked(&sent);
        let mut input = Input::over(&bytes[..]);
        assert_eq!(input.request().unwrap(), request());
        let mut all = Vec::new();
        input.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"abc");
        let mut decoder = Decoder::new();
        let mut frames = Vec::new();
        for byte in &bytes {
            decoder.feed(&[*byte]);
            frames.extend(decoder.next_frame().unwrap());
        }
        assert_eq!(frames[1..], sent);
    }

    #[test]
    fn data_without_its_end_is_broken_off_and_stays_so() {
        let whole = asked(&[Frame::Data(b"abc".to_vec()), Frame::End]);
        for cut in 1..=FRAME_HEAD + 3 {
            let mut input = Input::over(&whole[..whole.len() - cut]);
            input.request().unwrap();
            let mut all = Vec::new();
            assert!(input.read_to_end(&mut all).is_err(), "{cut} bytes less were the end");
            let again = input.data(&mut [0; 8]).unwrap_err();
            assert_eq!(again.kind, FailureKind::BrokenOff);
        }
    }

    #[test]
    fn what_is_too_long_or_of_no_known_kind_is_refused_before_it_is_held() {
        for head in [[DATA, 1, 0, 4, 0], [HEAD, 0, 0, 0, 1], [END, 1, 0, 0, 0], [b'?', 0, 0, 0, 0]]
        {
            let mut decoder = Decoder::new();
            decoder.feed(&head);
            assert_eq!(decoder.next_frame(), Err(Malformed), "{head:?}");
        }
    }

    #[test]
    fn an_answer_can_fail_after_its_head() {
        let mut bytes = Vec::new();
        let mut output = Output::over(&mut bytes);
        output.head(&1).unwrap();
        output.data(&[7; DATA_MAX + 1]).unwrap();
        let failure = Failure::new(FailureKind::Changed, "it shrank");
        output.fail(&failure).unwrap();
        drop(output);
        let mut decoder = Decoder::new();
        decoder.feed(&bytes);
        let mut frames = Vec::new();
        while let Some(frame) = decoder.next_frame().unwrap() {
            frames.push(frame);
        }
        assert_eq!(frames.len(), 4);
        let Some(Frame::Failed(json)) = frames.pop() else { panic!("{frames:?}") };
        assert_eq!(serde_json::from_slice::<Failure>(&json).unwrap(), failure);
    }
}
