//! The input of an exec. The host may send up to an announced offset; at most [`STDIN_WINDOW`] bytes are buffered here
//! until the command reads them.
//!
//! If a command closes its stdin, or has none, the bytes are dropped and more are requested, so that a writer never
//! blocks because of a missing reader.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use guest_proto::{STDIN_FIRST, STDIN_WINDOW};

use crate::sys;

pub struct Stdin {
    pipe: Option<OwnedFd>,
    reader: Reader,
    waiting: Vec<u8>,
    /// How much of `waiting` is written.
    skip: usize,
    received: u64,
    announced: u64,
    ending: StdinEnd,
    at_end: AtEnd,
    /// The last byte received.
    last: Option<u8>,
    pub watch: Watch,
}

/// Whether there is a reader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Here,
    /// Its turn has not come: input is buffered for it.
    Awaited,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StdinEnd {
    Open,
    AfterWaiting,
}

/// What happens after the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// The pipe is closed.
    Close,
    /// A terminal cannot be closed without hanging up: the end-of-file key is typed instead.
    Type,
}

/// Whether the loop watches the pipe for room: only after it was full once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    NotNeeded,
    Wanted,
    Watched,
}

/// The host sent more than was announced, or after the end.
#[derive(Debug, PartialEq, Eq)]
pub struct Unwanted;

impl Stdin {
    pub fn new(pipe: Option<OwnedFd>, at_end: AtEnd) -> Self {
        Self {
            pipe,
            reader: Reader::Here,
            waiting: Vec::new(),
            skip: 0,
            received: 0,
            announced: STDIN_FIRST as u64,
            ending: StdinEnd::Open,
            at_end,
            last: None,
            watch: Watch::NotNeeded,
        }
    }

    /// For a command that waits for its turn.
    pub fn awaited() -> Self {
        Self { reader: Reader::Awaited, ..Self::new(None, AtEnd::Close) }
    }

    /// Its turn has come.
    pub fn open(&mut self, pipe: Option<OwnedFd>) {
        self.reader = Reader::Here;
        self.pipe = pipe;
        self.flush();
    }

    pub fn pipe(&self) -> Option<&OwnedFd> {
        self.pipe.as_ref()
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    /// Takes input of the host. `swallowed` of it are signal keys that are not for the command.
    pub fn feed(&mut self, bytes: Vec<u8>, swallowed: usize) -> Result<(), Unwanted> {
        let end = self.received.saturating_add((bytes.len() + swallowed) as u64);
        if end > self.announced || self.ending == StdinEnd::AfterWaiting {
            return Err(Unwanted);
        }
        self.received = end;
        self.last = bytes.last().copied().or(self.last);
        if self.skip == self.waiting.len() {
            self.waiting = bytes;
            self.skip = 0;
        } else {
            self.waiting.drain(..self.skip);
            self.skip = 0;
            self.waiting.extend_from_slice(&bytes);
        }
        self.flush();
        Ok(())
    }

    pub fn end(&mut self) {
        if self.ending == StdinEnd::Open && self.at_end == AtEnd::Type {
            self.type_end();
        }
        self.ending = StdinEnd::AfterWaiting;
        self.flush();
    }

    /// The first such key only ends an unfinished line.
    fn type_end(&mut self) {
        let Some(key) = self.pipe.as_ref().and_then(|pipe| sys::end_of_file_key(pipe.as_fd()))
        else {
            return;
        };
        self.waiting.push(key);
        if self.last.is_some_and(|last| !matches!(last, b'\n' | b'\r')) {
            self.waiting.push(key);
        }
    }

    /// Writes buffered input, as far as the pipe has room.
    pub fn flush(&mut self) {
        if self.reader == Reader::Awaited {
            return;
        }
        while let Some(pipe) = &self.pipe {
            let rest = &self.waiting[self.skip..];
            if rest.is_empty() {
                if self.ending == StdinEnd::AfterWaiting {
                    self.pipe = None;
                }
                break;
            }
            match sys::write(pipe.as_fd(), rest) {
                Ok(count) => self.skip += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.watch == Watch::NotNeeded {
                        self.watch = Watch::Wanted;
                    }
                    return;
                }
                Err(_) => self.pipe = None,
            }
        }
        self.waiting = Vec::new();
        self.skip = 0;
    }

    /// The offset up to which the host may send, if it is time to announce it. A queued command gets no more than the
    /// first window, and a host that sends only a little is not disturbed.
    pub fn announce(&mut self) -> Option<u64> {
        if self.reader == Reader::Awaited || self.received < (STDIN_FIRST / 2) as u64 {
            return None;
        }
        // A terminal's end-of-file key is buffered, too, but was never received.
        let written = self.received.saturating_sub((self.waiting.len() - self.skip) as u64);
        let up_to = written + STDIN_WINDOW as u64;
        let worth_it = up_to.saturating_sub(self.announced) >= (STDIN_WINDOW / 2) as u64;
        worth_it.then(|| {
            self.announced = up_to;
            up_to
        })
    }

    /// The offset up to which the host may send, for a new watcher.
    pub fn announced(&self) -> u64 {
        self.announced
    }

    /// The command is gone.
    pub fn close(&mut self) {
        self.reader = Reader::Here;
        self.pipe = None;
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = STDIN_FIRST as u64;
    const WINDOW: u64 = STDIN_WINDOW as u64;

    #[test]
    fn stdin_nobody_reads_is_dropped_and_asked_for_again() {
        let mut stdin = Stdin::new(None, AtEnd::Close);
        assert_eq!(stdin.announce(), None, "the first bytes need no announcement");
        stdin.feed(vec![1; 1000], 0).unwrap();
        assert_eq!(stdin.announce(), None, "nor does one who sends a few");
        stdin.feed(vec![1; STDIN_FIRST - 1000], 0).unwrap();
        assert_eq!(stdin.announce(), Some(FIRST + WINDOW));
        assert_eq!(stdin.announce(), None);
        stdin.feed(vec![1; STDIN_WINDOW / 2], 0).unwrap();
        assert_eq!(stdin.announce(), Some(FIRST + WINDOW + WINDOW / 2));
    }

    #[test]
    fn more_than_was_asked_for_is_refused() {
        let mut stdin = Stdin::new(None, AtEnd::Close);
        assert_eq!(stdin.feed(vec![1; STDIN_FIRST], 1), Err(Unwanted));
        stdin.end();
        assert_eq!(stdin.feed(vec![1], 0), Err(Unwanted));
    }

    #[test]
    fn who_waits_for_its_turn_is_given_no_more_than_the_first_bytes() {
        let mut stdin = Stdin::awaited();
        stdin.feed(vec![1; STDIN_FIRST], 0).unwrap();
        assert_eq!(stdin.announce(), None);
        stdin.open(None);
        assert_eq!(stdin.announce(), Some(FIRST + WINDOW));
    }
}
