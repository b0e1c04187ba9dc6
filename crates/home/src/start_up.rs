//! Whether a sandbox's start command is still due: a note that exists from before the sandbox comes up until the
//! command was started. It names the command's exec, so that a daemon that finds the note knows which. It is never
//! synced: the sandbox's processes do not survive the machine either.

use std::fs;
use std::io;

use super::{Home, file};
use sandkeep_core::ExecId;

const START_UP: &str = "start-up";

impl Home {
    /// Records that it is due.
    pub fn note_start_up(&self, exec: &ExecId) -> io::Result<()> {
        file::replace(self.path(), START_UP, exec.as_str().as_bytes())
    }

    /// The exec that is due, or may just have started. An unreadable note counts as none.
    pub fn start_up_due(&self) -> Option<ExecId> {
        fs::read_to_string(self.path().join(START_UP)).ok()?.parse().ok()
    }

    /// It was started, or is no longer wanted.
    pub fn forget_start_up(&self) -> io::Result<()> {
        match fs::remove_file(self.path().join(START_UP)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
