//! The terminal of an exec. Input, output and errors share one line; the guest has its other end.
//!
//! The guest also keeps the line open, as long as the first process lives. Otherwise a command that closes all its
//! descriptors and later opens /dev/tty again would have ended its own output in between. When the first process is
//! gone the kernel hangs up on the foreground; background processes may still write, to nobody.

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

    /// For a kernel that passes every key on: removes signal keys from the input, echoes them, and returns their
    /// signals.
    pub fn sort_out_signals(&self, typed: &mut Vec<u8>) -> Vec<i32> {
        let mut signals = Vec::new();
        typed.retain(|key| match sys::signal_of_key(self.control.as_fd(), *key) {
            None => true,
            Some(signal) => {
                // If the line is full, keys are not echoed.
                let _ = sys::write(self.line.as_fd(), &[b'^', key ^ 0x40]);
                signals.push(signal);
                false
            }
        });
        signals
    }

    /// A window without rows or columns has an unknown size, as everywhere.
    pub fn resize(&self, size: TerminalSize) {
        // It cannot fail while the terminal is open.
        let _ = sys::resize(self.control.as_fd(), size);
    }
}
