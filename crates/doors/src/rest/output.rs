//! Output of a command as JSON can carry it. Bytes are text where they are UTF-8 and base64 where not;
//! a character cut in two by a chunk or by a limit is no reason to call text binary.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use sandkeep_core::{
    excerpt::{Cut, Excerpt, Omitted, incomplete_suffix},
    limits::{OUTPUT_HEAD_MAX_BYTES, OUTPUT_TAIL_MAX_BYTES},
};

/// Bytes in the form they travel in.
#[derive(Debug, PartialEq, Eq)]
pub enum Encoded {
    Text(String),
    Base64(String),
}

impl Encoded {
    pub fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(not_text) => Self::Base64(STANDARD.encode(not_text.as_bytes())),
        }
    }

    /// For JSON: `data` and `data_b64`, of which one is there.
    pub fn fields(self) -> (Option<String>, Option<String>) {
        match self {
            Self::Text(text) => (Some(text), None),
            Self::Base64(text) => (None, Some(text)),
        }
    }

    /// As text, for a dialect that has nothing else: what is not UTF-8 is replaced.
    pub fn into_lossy(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Base64(text) => {
                let bytes = STANDARD.decode(text).expect("it was encoded here");
                String::from_utf8_lossy(&bytes).into_owned()
            }
        }
    }
}

/// One stream of a live exec: passes chunks on as they come, but holds back the beginning of a
/// character until the rest of it is there.
#[derive(Debug, Default)]
pub struct Carry {
    held: Vec<u8>,
    /// Where `held` starts in the stream.
    offset: u64,
}

/// A piece of a stream that can be sent on.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    /// In bytes, before it was encoded.
    pub len: u64,
    pub data: Encoded,
}

impl Carry {
    /// Takes the chunk at `offset`; `None` if all of it is held back.
    pub fn push(&mut self, offset: u64, chunk: &[u8]) -> Option<Piece> {
        let start = if self.held.is_empty() { offset } else { self.offset };
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend_from_slice(chunk);
        self.held = bytes.split_off(bytes.len() - incomplete_suffix(&bytes));
        self.offset = start + bytes.len() as u64;
        Piece::of(start, bytes)
    }

    /// What is still held back when the stream ends.
    pub fn finish(&mut self) -> Option<Piece> {
        let held = std::mem::take(&mut self.held);
        Piece::of(self.offset, held)
    }
}

impl Piece {
    fn of(offset: u64, bytes: Vec<u8>) -> Option<Self> {
        let len = bytes.len() as u64;
        (len > 0).then(|| Self { offset, len, data: Encoded::of(bytes) })
    }
}

/// One stream of a blocking exec: its head and its tail, each up to a limit, and a count of what
/// lay between.
#[derive(Debug)]
pub struct Kept(Excerpt);

impl Default for Kept {
    fn default() -> Self {
        Self(Excerpt::within(OUTPUT_HEAD_MAX_BYTES, OUTPUT_TAIL_MAX_BYTES))
    }
}

/// A stream as the answer of a blocking exec shows it.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    pub data: Encoded,
    pub omitted: Option<Omitted>,
}

impl Kept {
    pub fn push(&mut self, chunk: &[u8]) {
        self.0.push(chunk);
    }

    pub fn show(self) -> Shown {
        let Cut { bytes, omitted } = self.0.cut();
        Shown { data: Encoded::of(bytes), omitted }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(data: &Encoded) -> Vec<u8> {
        match data {
            Encoded::Text(text) => text.as_bytes().to_vec(),
            Encoded::Base64(text) => STANDARD.decode(text).expect("it was encoded here"),
        }
    }

    /// Sends `bytes` through a carry in chunks of the given lengths.
    fn carried(bytes: &[u8], lengths: &[usize]) -> Vec<Piece> {
        let (mut carry, mut pieces, mut at) = (Carry::default(), Vec::new(), 0);
        for length in lengths.iter().copied().chain([bytes.len()]) {
            let end = (at + length).min(bytes.len());
            pieces.extend(carry.push(at as u64, &bytes[at..end]));
            at = end;
        }
        pieces.extend(carry.finish());
        pieces
    }

    fn assert_complete(bytes: &[u8], pieces: &[Piece]) {
        let mut at = 0;
        for piece in pieces {
            assert_eq!(piece.offset, at, "pieces follow each other without a gap");
            at += decode(&piece.data).len() as u64;
        }
        let joined: Vec<u8> = pieces.iter().flat_map(|piece| decode(&piece.data)).collect();
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
            prop_assert!(pieces.iter().all(|piece| matches!(piece.data, Encoded::Text(_))));
        }

        #[test]
        fn any_bytes_arrive_whole_and_in_order(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            lengths in prop::collection::vec(0usize..7, 0..60),
        ) {
            assert_complete(&bytes, &carried(&bytes, &lengths));
        }
    }

    #[test]
    fn a_bad_byte_does_not_spoil_the_character_cut_after_it() {
        let mut carry = Carry::default();
        let euro = "€".as_bytes();
        let first = carry.push(0, &[b"\xff", &euro[..2]].concat()).expect("a byte can be sent");
        assert_eq!(first, Piece { offset: 0, len: 1, data: Encoded::Base64("/w==".to_owned()) });
        let second = carry.push(3, &euro[2..]).expect("the character is whole");
        assert_eq!(second, Piece { offset: 1, len: 3, data: Encoded::Text("€".to_owned()) });
        assert_eq!(carry.finish(), None);
    }

    #[test]
    fn half_a_character_at_the_end_is_not_lost() {
        let mut carry = Carry::default();
        assert_eq!(carry.push(0, &"€".as_bytes()[..2]), None);
        let rest = carry.finish().expect("two bytes are held");
        assert_eq!(decode(&rest.data), &"€".as_bytes()[..2]);
    }

    #[test]
    fn short_output_is_kept_whole() {
        let mut kept = Kept::default();
        kept.push(b"one ");
        kept.push(b"two");
        let data = Encoded::Text("one two".to_owned());
        assert_eq!(kept.show(), Shown { data, omitted: None });
    }

    #[test]
    fn a_flood_keeps_head_and_tail_and_counts_the_rest() {
        let total = OUTPUT_HEAD_MAX_BYTES + OUTPUT_TAIL_MAX_BYTES + 12_345;
        let flood: Vec<u8> = (0..total).map(|i| b'a' + (i % 23) as u8).collect();
        let mut kept = Kept::default();
        flood.chunks(50_001).for_each(|chunk| kept.push(chunk));
        let shown = kept.show();
        let omitted = Omitted { at: OUTPUT_HEAD_MAX_BYTES as u64, bytes: 12_345 };
        assert_eq!(shown.omitted, Some(omitted));
        let bytes = decode(&shown.data);
        assert!(bytes[..OUTPUT_HEAD_MAX_BYTES] == flood[..OUTPUT_HEAD_MAX_BYTES]);
        assert!(bytes[OUTPUT_HEAD_MAX_BYTES..] == flood[total - OUTPUT_TAIL_MAX_BYTES..]);
    }

    #[test]
    fn the_gap_takes_half_characters_with_it_so_text_stays_text() {
        let mut kept = Kept::default();
        let total = 3 * (OUTPUT_HEAD_MAX_BYTES + OUTPUT_TAIL_MAX_BYTES);
        kept.push(b"x");
        kept.push("€".repeat(total / 3).as_bytes());
        let shown = kept.show();
        let Encoded::Text(text) = &shown.data else { panic!("text became binary") };
        let omitted = shown.omitted.expect("it is over the limits");
        assert_eq!(text.len() as u64 + omitted.bytes, 1 + total as u64);
    }
}
