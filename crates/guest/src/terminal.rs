//! The terminal of an exec. Input, output and errors are one line; the guest has its other end.
//!
//! The guest keeps the line open, too, for as long as the first process lives. Otherwise a command
//! that closes all its descriptors and later opens /dev/tty again would have ended its own output in
//! between. When the first process is gone the kernel hangs up on the foreground; what it left in the
//! background may go on writing, to nobody.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use guest_proto::{StdinMode, TerminalSize};

use crate::exec::Pipes;
use crate::plan::{Stdio, StdioKind};
use crate::sys;

pub struct Terminal {
    control: OwnedFd,
    line: OwnedFd,
}

impl Terminal {
    /// The ends of a new terminal: ours, and those of a command of the user `owner`.
    pub fn open(owner: u32, size: TerminalSize, stdin: StdinMode) -> io::Result<(Pipes, Stdio)> {
        let (control, line) = sys::open_terminal(owner)?;
        sys::resize(control.as_fd(), size)?;
        let typed = match stdin {
            StdinMode::Null => None,
            StdinMode::Piped => Some(control.try_clone()?),
        };
        let pipes = Pipes {
            stdin: typed,
            stdout: control.try_clone()?,
            stderr: None,
            terminal: Some(Self { control, line: line.try_clone()? }),
        };
        let stdio = Stdio {
            stdin: line.try_clone()?,
            stdout: line.try_clone()?,
            stderr: line,
            kind: StdioKind::Terminal,
        };
        Ok((pipes, stdio))
    }

    /// For a kernel that passes every key on: takes those that stand for a signal out of what was typed,
    /// shows them, and says which signals they are.
    pub fn sort_out_signals(&self, typed: &mut Vec<u8>) -> Vec<i32> {
        let mut signals = Vec::new();
        typed.retain(|key| match sys::signal_of_key(self.control.as_fd(), *key) {
            None => true,
            Some(signal) => {
                // A full line shows no keys.
                let _ = sys::write(self.line.as_fd(), &[b'^', key ^ 0x40]);
                signals.push(signal);
                false
            }
        });
        signals
    }

    /// A window of no rows or columns is one of unknown size, as everywhere.
    pub fn resize(&self, size: TerminalSize) {
        // It cannot fail while the terminal is open.
        let _ = sys::resize(self.control.as_fd(), size);
    }
}
