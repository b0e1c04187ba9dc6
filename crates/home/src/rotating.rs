//! Lines in the home of a sandbox that nobody needs for ever. They are never synced.
//!
//! A full file replaces the previous one: so at least one file of the newest lines is kept, and never more than two.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The files of one kind of lines.
pub(super) struct Rotating {
    pub now: &'static str,
    pub before: &'static str,
    /// When the first file is full.
    pub max_bytes: u64,
}

impl Rotating {
    /// Appends a line. Does nothing if there is no home.
    pub fn append(&self, home: &Path, line: &[u8]) -> io::Result<()> {
        let path = home.join(self.now);
        let mut options = OpenOptions::new();
        let mut file = match options.append(true).create(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        if file.metadata()?.len() >= self.max_bytes {
            fs::rename(&path, home.join(self.before))?;
            file = options.open(&path)?;
        }
        file.write_all(&[line, b"\n"].concat())
    }

    /// All lines, oldest first.
    pub fn read(&self, home: &Path) -> io::Result<Vec<u8>> {
        let mut lines = Vec::new();
        for name in [self.before, self.now] {
            match File::open(home.join(name)) {
                // A line may exceed the remaining space, once.
                Ok(file) => file.take(2 * self.max_bytes).read_to_end(&mut lines)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
        }
        Ok(lines)
    }
}
