//! Output of a command on its way to a client.

use bytes::{Bytes, BytesMut};

use sandkeep_core::{api::ExecEvent, excerpt::incomplete_suffix};
use sandkeep_guestlink::OutputStream;

/// The output of a live exec: forwards chunks as they come, but holds back an incomplete character until the rest
/// arrives. A character split between two chunks is no reason to treat text as binary.
#[derive(Debug, Default)]
pub struct Carry {
    stdout: PartialCharacter,
    stderr: PartialCharacter,
}

/// An incomplete character, and its offset in the stream.
#[derive(Debug, Default)]
struct PartialCharacter {
    bytes: Bytes,
    offset: u64,
}

/// A part of a stream that is ready to be sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    pub stream: OutputStream,
    pub offset: u64,
    pub data: Bytes,
}

impl Carry {
    /// Takes the chunk at `offset`; `None` if all of it is held back. A chunk is copied only if held bytes must be
    /// prepended.
    pub fn push(&mut self, stream: OutputStream, offset: u64, chunk: Bytes) -> Option<Piece> {
        let held = self.held(stream);
        let (offset, mut data) = if held.bytes.is_empty() {
            (offset, chunk)
        } else {
            let mut joined = BytesMut::with_capacity(held.bytes.len() + chunk.len());
            joined.extend_from_slice(&held.bytes);
            joined.extend_from_slice(&chunk);
            (held.offset, joined.freeze())
        };
        held.bytes = data.split_off(data.len() - incomplete_suffix(&data));
        held.offset = offset + data.len() as u64;
        (!data.is_empty()).then_some(Piece { stream, offset, data })
    }

    /// The bytes of a stream still held back, when no continuation follows.
    pub fn finish(&mut self, stream: OutputStream) -> Option<Piece> {
        let PartialCharacter { bytes: data, offset } = std::mem::take(self.held(stream));
        (!data.is_empty()).then_some(Piece { stream, offset, data })
    }

    fn held(&mut self, stream: OutputStream) -> &mut PartialCharacter {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }
}

impl Piece {
    /// The offset after the last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

impl From<Piece> for ExecEvent {
    fn from(Piece { stream, offset, data }: Piece) -> Self {
        Self::Output { stream, offset, data }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OUT: OutputStream = OutputStream::Stdout;

    /// Sends `bytes` through a carry in chunks of the given lengths.
    fn carried(bytes: &[u8], lengths: &[usize]) -> Vec<Piece> {
        let (mut carry, mut pieces, mut at) = (Carry::default(), Vec::new(), 0);
        for length in lengths.iter().copied().chain([bytes.len()]) {
            let end = (at + length).min(bytes.len());
            let chunk = Bytes::copy_from_slice(&bytes[at..end]);
            pieces.extend(carry.push(OUT, at as u64, chunk));
            at = end;
        }
        pieces.extend(carry.finish(OUT));
        pieces
    }

    fn assert_complete(bytes: &[u8], pieces: &[Piece]) {
        let mut at = 0;
        for piece in pieces {
            assert_eq!(piece.offset, at, "pieces follow each other without a gap");
            at = piece.end();
        }
        let joined: Vec<u8> = pieces.iter().flat_map(|piece| piece.data.to_vec()).collect();
        assert_eq!(joined, bytes);
    }

    proptest! {
        #[test]
        fn text_stays_text_however_it_is_cut(
            text in "\\PC{0,40}",
            lengths in prop::collection::vec(0usize..5, 0..40),
        ) {
            let pieces = carried(text.as_bytes(), &lengths);
            assert_complete(text.as_bytes(), &pieces);
            prop_assert!(pieces.iter().all(|piece| std::str::from_utf8(&piece.data).is_ok()));
        }

        #[test]
        fn any_bytes_arrive_whole_and_in_order(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            lengths in prop::collection::vec(0usize..7, 0..60),
        ) {
            assert_complete(&bytes, &carried(&bytes, &lengths));
        }
    }

    fn piece(offset: u64, data: &'static [u8]) -> Option<Piece> {
        Some(Piece { stream: OUT, offset, data: data.into() })
    }

    #[test]
    fn a_bad_byte_does_not_spoil_the_character_cut_after_it() {
        let mut carry = Carry::default();
        let euro = "€".as_bytes();
        let first = carry.push(OUT, 0, [b"\xff", &euro[..2]].concat().into());
        assert_eq!(first, piece(0, b"\xff"));
        assert_eq!(carry.push(OUT, 3, euro[2..].into()), piece(1, euro));
        assert_eq!(carry.finish(OUT), None);
    }

    #[test]
    fn half_a_character_at_the_end_is_not_lost() {
        let (mut carry, euro) = (Carry::default(), "€".as_bytes());
        assert_eq!(carry.push(OUT, 0, euro[..2].into()), None);
        assert_eq!(carry.finish(OutputStream::Stderr), None, "each stream has its own");
        assert_eq!(carry.finish(OUT), piece(0, &euro[..2]));
    }

    #[test]
    fn whole_chunks_are_passed_on_without_a_copy() {
        let chunk = Bytes::from("text".to_owned());
        let sent = Carry::default().push(OUT, 0, chunk.clone()).expect("it is whole");
        assert_eq!(sent.data.as_ptr(), chunk.as_ptr());
    }
}
