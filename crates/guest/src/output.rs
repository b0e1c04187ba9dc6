//! One output stream of an exec: its pipe or terminal, and the window of the data read from it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys;
use crate::window::Window;

/// The first read is small, because most commands print little; further reads have full size.
const FIRST_READ: usize = 4 * 1024;
const READ_MAX: usize = 64 * 1024;
/// Never less is read at once: a command may set its pipe to packets of up to a page (O_DIRECT), and the part of a
/// packet that does not fit is lost.
const READ_MIN: usize = 4 * 1024;
/// More than a terminal buffers, which cannot be queried (some 12 KiB on Linux).
const TERMINAL_MAX: usize = 64 * 1024;

pub struct Output {
    /// `None` after its end, and when everything that belongs to the exec was read.
    pipe: Option<OwnedFd>,
    pub window: Window,
    left: Left,
}

/// How much of the pipe still belongs to the exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// The first process is running: everything.
    All,
    /// It has exited: the bytes that were in the pipe at that time. Later output of background processes belongs to
    /// nobody.
    Bytes(usize),
}

impl Output {
    pub fn new(pipe: Option<OwnedFd>) -> Self {
        Self { pipe, window: Window::default(), left: Left::All }
    }

    /// Reads until the pipe is empty or the window full. Edge-triggered events are sufficient, because an
    /// acknowledgement that makes room calls this again.
    pub fn fill(&mut self) {
        let mut size = FIRST_READ;
        while let Some(pipe) = &self.pipe {
            let (max, keep) = match self.left {
                Left::All => (size, usize::MAX),
                Left::Bytes(0) => return,
                Left::Bytes(left) => (left.clamp(READ_MIN, READ_MAX), left),
            };
            if self.window.room() < READ_MIN {
                return;
            }
            match self.window.read_from(pipe.as_fd(), max, keep) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    if let Left::Bytes(left) = &mut self.left {
                        *left -= count;
                    }
                    size = READ_MAX;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // A process inside has also read from the pipe: the rest will never come.
                    if let Left::Bytes(left) = &mut self.left {
                        *left = 0;
                    }
                    return;
                }
                Err(_) => self.pipe = None,
            }
        }
    }

    /// The first process has exited: from now on only the present content of the pipe counts.
    pub fn settle(&mut self) {
        if let (Some(pipe), Left::All) = (&self.pipe, self.left) {
            self.left = Left::Bytes(sys::pending(pipe.as_fd()));
        }
        self.fill();
    }

    /// The same for a terminal: its content can be read at once, and anything beyond its capacity is not the exec's.
    /// When its other end is closed, reading fails with an error.
    pub fn settle_terminal(&mut self) {
        self.left = Left::Bytes(TERMINAL_MAX);
        self.fill();
    }

    /// Whether everything that belongs to the exec is in the window or was acknowledged.
    pub fn is_complete(&self) -> bool {
        self.pipe.is_none() || self.left == Left::Bytes(0)
    }

    /// Returns the pipe, for the next command.
    pub fn give_back(&mut self) -> Option<OwnedFd> {
        self.pipe.take()
    }

    /// Gives up the pipe if background processes still hold its other end: it must be drained, or they would block or
    /// get SIGPIPE.
    pub fn leave_pipe(&mut self) -> Option<OwnedFd> {
        self.pipe.take().filter(|pipe| sys::discard(pipe.as_fd()) == sys::Discarded::StillOpen)
    }
}
