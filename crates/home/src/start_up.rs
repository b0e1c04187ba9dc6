//! Whether what a sandbox's template starts is still to be started: a note that is there from before the sandbox comes
//! up until it was. It names the exec that it is or will be, so that whoever finds the note can tell which. It is never
//! synced: what it is about does not survive the machine either.

use std::fs;
use std::io;

use super::{Home, file};
use sandkeep_core::ExecId;

const START_UP: &str = "start-up";

impl Home {
    /// Notes down that it is due.
    pub fn note_start_up(&self, exec: &ExecId) -> io::Result<()> {
        file::replace(self.path(), START_UP, exec.as_str().as_bytes())
    }

    /// The exec that is due, or may have begun a moment ago. A note that cannot be read is none.
    pub fn start_up_due(&self) -> Option<ExecId> {
        fs::read_to_string(self.path().join(START_UP)).ok()?.parse().ok()
    }

    /// It was begun, or is not wanted any more.
    pub fn forget_start_up(&self) -> io::Result<()> {
        match fs::remove_file(self.path().join(START_UP)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
