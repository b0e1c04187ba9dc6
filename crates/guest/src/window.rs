//! The state of one output stream: what was acknowledged, sent, and buffered. Offsets count from the first byte of the
//! stream.
//!
//! ```text
//!   0 ────── acked ────────── sent ────────── end
//!    released      held, sent      held, unsent
//! ```
//!
//! At most [`OUTPUT_WINDOW`] bytes are held, and none when everything is acknowledged.

use std::io;
use std::os::fd::BorrowedFd;

use guest_proto::OUTPUT_WINDOW;

use crate::sys;

#[derive(Debug, Default)]
pub struct Window {
    acked: u64,
    sent: u64,
    /// The held bytes start at `skip`; those before it are released but not yet removed.
    held: Vec<u8>,
    skip: usize,
}

/// The host acknowledged, or requested, bytes that do not exist yet.
#[derive(Debug, PartialEq, Eq)]
pub struct BeyondEnd;

impl Window {
    pub fn end(&self) -> u64 {
        self.acked + self.held_len() as u64
    }

    pub fn room(&self) -> usize {
        OUTPUT_WINDOW - self.held_len()
    }

    pub fn all_sent(&self) -> bool {
        self.sent == self.end()
    }

    fn held_len(&self) -> usize {
        self.held.len() - self.skip
    }

    /// Reads up to `max` bytes from a pipe, as far as there is room, and keeps the first `keep` of them; returns how
    /// many it kept. `Ok(0)` is the end of the pipe.
    pub fn read_from(
        &mut self,
        pipe: BorrowedFd<'_>,
        max: usize,
        keep: usize,
    ) -> io::Result<usize> {
        let max = max.min(self.room());
        if self.skip > 0 && self.held.len() + max > self.held.capacity() {
            self.held.drain(..self.skip);
            self.skip = 0;
        }
        let count = sys::read_append(pipe, &mut self.held, max)?;
        let kept = count.min(keep);
        self.held.truncate(self.held.len() - (count - kept));
        Ok(kept)
    }

    #[cfg(test)]
    fn push(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room());
        self.held.extend_from_slice(bytes);
    }

    /// The next unsent bytes and their offset; they count as sent from now on.
    pub fn take_unsent(&mut self, max: usize) -> (u64, &[u8]) {
        let offset = self.sent;
        let from = self.skip + (self.sent - self.acked) as usize;
        let to = self.held.len().min(from + max);
        self.sent += (to - from) as u64;
        (offset, &self.held[from..to])
    }

    /// Releases everything below `offset`. An offset below an earlier one changes nothing.
    pub fn acknowledge(&mut self, offset: u64) -> Result<(), BeyondEnd> {
        if offset > self.sent {
            return Err(BeyondEnd);
        }
        if offset > self.acked {
            self.skip += (offset - self.acked) as usize;
            self.acked = offset;
        }
        if self.skip == self.held.len() {
            self.held = Vec::new();
            self.skip = 0;
        }
        Ok(())
    }

    /// Starts sending again at `offset`, or at the first held byte.
    pub fn rewind(&mut self, offset: u64) -> Result<(), BeyondEnd> {
        if offset > self.end() {
            return Err(BeyondEnd);
        }
        self.sent = offset.max(self.acked);
        self.acknowledge(self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_acknowledged_is_sent_again_after_a_rewind() {
        let mut window = Window::default();
        window.push(b"hello world");
        assert_eq!(window.take_unsent(5), (0, &b"hello"[..]));
        assert_eq!(window.take_unsent(100), (5, &b" world"[..]));
        assert_eq!(window.take_unsent(100), (11, &b""[..]));
        window.acknowledge(3).unwrap();
        window.rewind(4).unwrap();
        assert_eq!(window.take_unsent(100), (4, &b"o world"[..]));
    }

    #[test]
    fn a_rewind_below_what_was_let_go_starts_at_the_first_held_byte() {
        let mut window = Window::default();
        window.push(b"hello");
        window.take_unsent(5);
        window.acknowledge(3).unwrap();
        window.rewind(0).unwrap();
        assert_eq!(window.take_unsent(9), (3, &b"lo"[..]));
    }

    #[test]
    fn offsets_that_do_not_exist_are_refused() {
        let mut window = Window::default();
        window.push(b"hello");
        assert_eq!(window.acknowledge(1), Err(BeyondEnd), "it was not even sent");
        assert_eq!(window.rewind(6), Err(BeyondEnd));
        window.take_unsent(5);
        assert_eq!(window.acknowledge(u64::MAX), Err(BeyondEnd));
    }

    #[test]
    fn room_comes_back_only_with_acknowledgements_and_memory_goes_with_the_last() {
        let mut window = Window::default();
        window.push(&[7; OUTPUT_WINDOW]);
        assert_eq!(window.room(), 0);
        window.take_unsent(OUTPUT_WINDOW);
        assert_eq!(window.room(), 0);
        window.acknowledge(10).unwrap();
        assert_eq!(window.room(), 10);
        window.acknowledge(OUTPUT_WINDOW as u64).unwrap();
        assert_eq!(window.room(), OUTPUT_WINDOW);
        assert_eq!(window.held.capacity(), 0);
    }
}
