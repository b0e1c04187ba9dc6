//! The head and the tail of a stream, each up to a limit, and the number of omitted bytes in between. UTF-8 is kept
//! intact: incomplete characters at the edges of the gap are omitted as well.

use std::collections::VecDeque;

/// The longest incomplete prefix of a UTF-8 character.
const INCOMPLETE_MAX_BYTES: usize = 3;

#[derive(Debug)]
pub struct Excerpt {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
    head_max: usize,
    tail_max: usize,
}

/// The result of shortening a stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Cut {
    pub bytes: Vec<u8>,
    pub omitted: Option<Omitted>,
}

/// The gap in a stream that was longer than the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Omitted {
    /// The gap's position in the remaining bytes.
    pub at: u64,
    pub bytes: u64,
}

impl Excerpt {
    pub fn within(head_max: usize, tail_max: usize) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), dropped: 0, head_max, tail_max }
    }

    /// By how many bytes it would grow with a chunk of this length.
    pub fn growth(&self, chunk_len: usize) -> usize {
        let room = self.head_max - self.head.len() + self.tail_max.saturating_sub(self.tail.len());
        chunk_len.min(room)
    }

    /// Stops growing, and limits the tail to this size.
    pub fn close(&mut self, tail_max: usize) {
        self.head_max = self.head.len();
        self.tail_max = self.tail_max.min(tail_max);
    }

    pub fn push(&mut self, chunk: &[u8]) {
        let room = self.head_max - self.head.len();
        let (head, rest) = chunk.split_at(room.min(chunk.len()));
        self.head.extend_from_slice(head);

        let overflow = (self.tail.len() + rest.len()).saturating_sub(self.tail_max);
        let from_tail = overflow.min(self.tail.len());
        self.tail.drain(..from_tail);
        self.tail.extend(&rest[overflow - from_tail..]);
        self.dropped += overflow as u64;
    }

    pub fn cut(self) -> Cut {
        let Self { head: mut bytes, tail, dropped, .. } = self;
        let mut tail = Vec::from(tail);
        if dropped == 0 {
            bytes.append(&mut tail);
            return Cut { bytes, omitted: None };
        }
        let (before, after) = (incomplete_suffix(&bytes), orphaned_prefix(&tail));
        bytes.truncate(bytes.len() - before);
        let at = bytes.len() as u64;
        bytes.extend_from_slice(&tail[after..]);
        Cut { bytes, omitted: Some(Omitted { at, bytes: dropped + (before + after) as u64 }) }
    }
}

/// The number of bytes at the end that are an incomplete character.
pub fn incomplete_suffix(bytes: &[u8]) -> usize {
    let longest = bytes.len().min(INCOMPLETE_MAX_BYTES);
    let begins = |len: &usize| {
        let suffix = &bytes[bytes.len() - len..];
        std::str::from_utf8(suffix).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
    };
    (1..=longest).find(begins).unwrap_or(0)
}

/// The number of bytes at the start that continue a character whose beginning is missing.
fn orphaned_prefix(bytes: &[u8]) -> usize {
    let is_continuation = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    bytes.iter().take(INCOMPLETE_MAX_BYTES).take_while(is_continuation).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: usize = 300;
    const TAIL: usize = 200;

    fn cut(chunks: &[&[u8]]) -> Cut {
        let mut kept = Excerpt::within(HEAD, TAIL);
        chunks.iter().for_each(|chunk| kept.push(chunk));
        kept.cut()
    }

    #[test]
    fn short_output_is_kept_whole() {
        assert_eq!(cut(&[b"one ", b"two"]), Cut { bytes: b"one two".to_vec(), omitted: None });
    }

    #[test]
    fn a_closed_one_keeps_what_it_has_and_the_end() {
        let mut kept = Excerpt::within(HEAD, TAIL);
        assert_eq!((kept.growth(1), kept.growth(1000)), (1, HEAD + TAIL));
        kept.push(b"head");
        kept.close(3);
        kept.push(b" and much more");
        assert_eq!(kept.growth(1000), 0);
        let omitted = Some(Omitted { at: 4, bytes: 11 });
        assert_eq!(kept.cut(), Cut { bytes: b"headore".to_vec(), omitted });
    }

    #[test]
    fn a_flood_keeps_head_and_tail_and_counts_the_rest() {
        let total = HEAD + TAIL + 123;
        let flood: Vec<u8> = (0..total).map(|i| b'a' + (i % 23) as u8).collect();
        let shown = cut(&flood.chunks(51).collect::<Vec<_>>());
        assert_eq!(shown.omitted, Some(Omitted { at: HEAD as u64, bytes: 123 }));
        assert_eq!(shown.bytes, [&flood[..HEAD], &flood[total - TAIL..]].concat());
    }

    #[test]
    fn the_gap_takes_half_characters_with_it_so_text_stays_text() {
        let euros = "€".repeat(HEAD + TAIL);
        let shown = cut(&[b"x", euros.as_bytes()]);
        let text = String::from_utf8(shown.bytes).expect("text became binary");
        let omitted = shown.omitted.expect("it is over the limits");
        assert_eq!(text.len() as u64 + omitted.bytes, 1 + euros.len() as u64);
    }
}
