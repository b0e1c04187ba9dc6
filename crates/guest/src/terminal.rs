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
    _line: OwnedFd,
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
            terminal: Some(Self { control, _line: line.try_clone()? }),
        };
        let stdio = Stdio {
            stdin: line.try_clone()?,
            stdout: line.try_clone()?,
            stderr: line,
            kind: StdioKind::Terminal,
        };
        Ok((pipes, stdio))
    }

    /// A window of no rows or columns is one of unknown size, as everywhere.
    pub fn resize(&self, size: TerminalSize) {
        // It cannot fail while the terminal is open.
        let _ = sys::resize(self.control.as_fd(), size);
    }
}
