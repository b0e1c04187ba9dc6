//! The line endings of a file, separate from its text.

use std::ops::Range;

/// The same text with `\n` at the end of every line.
pub fn unix(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    for (at, byte) in text.iter().enumerate() {
        if *byte != b'\r' || text.get(at + 1) != Some(&b'\n') {
            plain.push(*byte);
        }
    }
    plain
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Lf,
    CrLf,
}

impl Ending {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::Lf => b"\n",
            Self::CrLf => b"\r\n",
        }
    }
}

/// The ending of each line of a file, in order.
#[derive(Debug)]
pub struct Endings(Vec<Ending>);

impl Endings {
    pub fn of(content: &[u8]) -> Self {
        let ends = memchr::memchr_iter(b'\n', content);
        let ending = |at: usize| match at.checked_sub(1).map(|before| content[before]) {
            Some(b'\r') => Ending::CrLf,
            Some(_) | None => Ending::Lf,
        };
        Self(ends.map(ending).collect())
    }

    /// A part of the plain text with its original line endings.
    pub fn restore(&self, plain: &[u8], part: Range<usize>) -> Vec<u8> {
        let mut line = line_index(plain, part.start);
        let next = || {
            let ending = self.0[line];
            line += 1;
            ending
        };
        with_endings(&plain[part], next)
    }

    /// A new text for this place: with the line ending of the line that it is inserted into.
    pub fn apply(&self, plain: &[u8], place: usize, new: &[u8]) -> Vec<u8> {
        let line = line_index(plain, place);
        let ending = self.0.get(line).or(self.0.last()).copied().unwrap_or(Ending::Lf);
        with_endings(new, || ending)
    }
}

fn line_index(plain: &[u8], at: usize) -> usize {
    memchr::memchr_iter(b'\n', &plain[..at]).count()
}

fn with_endings(text: &[u8], mut next: impl FnMut() -> Ending) -> Vec<u8> {
    let mut whole = Vec::with_capacity(text.len());
    for byte in text {
        match byte {
            b'\n' => whole.extend_from_slice(next().bytes()),
            other => whole.push(*other),
        }
    }
    whole
}
