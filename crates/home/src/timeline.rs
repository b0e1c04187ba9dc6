//! The history of a sandbox, one event per line, in its home. It is copied from the event log, which is trimmed sooner,
//! and never synced.
//!
//! A full file replaces the previous one: so at least one file of the most recent events is kept, and never more than
//! two.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sandkeep_core::limits::TIMELINE_FILE_MAX_BYTES;

const NOW: &str = "timeline";
const BEFORE: &str = "timeline.1";

/// Appends a line. Does nothing if there is no home.
pub fn append(home: &Path, line: &[u8]) -> io::Result<()> {
    let path = home.join(NOW);
    let mut options = OpenOptions::new();
    let mut file = match options.append(true).create(true).mode(0o600).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    if file.metadata()?.len() >= TIMELINE_FILE_MAX_BYTES {
        fs::rename(&path, home.join(BEFORE))?;
        file = options.open(&path)?;
    }
    file.write_all(&[line, b"\n"].concat())
}

/// All lines, oldest first.
pub fn read(home: &Path) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for name in [BEFORE, NOW] {
        match File::open(home.join(name)) {
            // A line may exceed the remaining space, once.
            Ok(file) => file.take(2 * TIMELINE_FILE_MAX_BYTES).read_to_end(&mut lines)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_the_files_stay_small() {
        let dir = tempfile::tempdir().expect("a directory");
        let line = vec![b'x'; 1000];
        let count = 4 * TIMELINE_FILE_MAX_BYTES / 1000;
        for _ in 0..count {
            append(dir.path(), &line).expect("a line");
        }
        append(dir.path(), b"last").expect("a line");
        let kept = read(dir.path()).expect("lines");
        assert!(kept.ends_with(b"x\nlast\n"));
        let len = u64::try_from(kept.len()).expect("a length");
        assert!((TIMELINE_FILE_MAX_BYTES..3 * TIMELINE_FILE_MAX_BYTES).contains(&len), "{len}");
    }

    #[test]
    fn where_there_is_no_home_nothing_is_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let gone = dir.path().join("gone");
        append(&gone, b"line").expect("nothing to do");
        assert!(!gone.exists());
        assert!(read(&gone).expect("nothing").is_empty());
    }
}
