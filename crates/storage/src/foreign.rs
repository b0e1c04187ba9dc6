//! A tree in our pool that is not ours, open for reading.

use std::fmt;
use std::path::{Path, PathBuf};

type Release = Box<dyn FnOnce() + Send + Sync>;

/// The tree of a snapshot. It may be read until it is released; if it is dropped instead, that happens in the background.
pub struct ForeignTree {
    root: PathBuf,
    release: Option<Release>,
}

impl ForeignTree {
    /// `release` may block.
    pub(crate) fn new(root: PathBuf, release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { root, release: Some(Box::new(release)) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns when nothing of it is left. Blocks.
    pub fn release(mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

impl fmt::Debug for ForeignTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignTree").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Drop for ForeignTree {
    fn drop(&mut self) {
        let Some(release) = self.release.take() else { return };
        // The same as for drafts of layers: without a thread it stays until the storage is opened.
        let _ = std::thread::Builder::new().name("release-dataset".to_owned()).spawn(release);
    }
}
