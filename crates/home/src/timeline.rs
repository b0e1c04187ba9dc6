//! The history of a sandbox, one event per line, in its home. It is copied from the event log, which is trimmed sooner.

use std::io;
use std::path::Path;

use super::rotating::Rotating;
use sandkeep_core::limits::TIMELINE_FILE_MAX_BYTES;

const TIMELINE: Rotating =
    Rotating { now: "timeline", before: "timeline.1", max_bytes: TIMELINE_FILE_MAX_BYTES };

/// Appends a line. Does nothing if there is no home.
pub fn append(home: &Path, line: &[u8]) -> io::Result<()> {
    TIMELINE.append(home, line)
}

/// All lines, oldest first.
pub fn read(home: &Path) -> io::Result<Vec<u8>> {
    TIMELINE.read(home)
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
