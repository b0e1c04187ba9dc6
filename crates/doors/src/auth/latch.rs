//! The one-way switch from local mode to keys mode.
//!
//! The switch is a file beside the state store and not a row in it. The store can be replaced, and a daemon that starts
//! with an empty store must not serve without keys what was served with keys before.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sandkeep_broker::error::Error;
use sandkeep_home::KEYS_REQUIRED;

#[derive(Debug)]
pub struct Latch {
    data_dir: PathBuf,
    /// Only ever changes to true; once it is, the file need not be checked again.
    closed: AtomicBool,
}

impl Latch {
    pub fn of(data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned(), closed: AtomicBool::new(false) }
    }

    /// Checks the file, because another process may have created the first key. A file that cannot be checked counts as
    /// present.
    pub fn is_closed(&self) -> bool {
        if self.closed.load(Ordering::Relaxed) {
            return true;
        }
        let found = fs::symlink_metadata(self.path());
        let closed = !matches!(found, Err(e) if e.kind() == io::ErrorKind::NotFound);
        if closed {
            self.closed.store(true, Ordering::Relaxed);
        }
        closed
    }

    /// Durable when this returns.
    pub fn close(&self) -> Result<(), Error> {
        self.write().map_err(|source| Error::DataDir {
            path: self.data_dir.display().to_string(),
            source,
        })?;
        self.closed.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(self.path())?.sync_all()?;
        File::open(&self.data_dir)?.sync_all()
    }

    fn path(&self) -> PathBuf {
        self.data_dir.join(KEYS_REQUIRED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_latch_is_closed_for_everybody_and_stays_so() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (ours, theirs) = (Latch::of(dir.path()), Latch::of(dir.path()));
        assert!(!ours.is_closed());
        theirs.close().expect("a writable directory");
        assert!(ours.is_closed(), "another process closed it");
        fs::remove_file(ours.path()).expect("it is there");
        assert!(ours.is_closed(), "a daemon that saw it closed never opens");
        assert!(ours.close().is_ok() && Latch::of(dir.path()).is_closed());
    }

    #[test]
    fn a_latch_that_cannot_be_looked_at_is_closed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("a writable directory");
        assert!(Latch::of(&file).is_closed(), "beneath a file there is neither this nor that");
    }
}
