//! Writes a small file atomically: a reader sees the old or the new content. Separately, makes it survive a power loss.
//! The end of the daemon alone never loses written data.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes `<dir>/<name>` through a temporary file beside it and a rename. One writer at a time.
pub(super) fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = dir.join(temporary(name));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    fs::rename(&temporary, dir.join(name))
}

/// The name of the file while it is incomplete.
pub(super) fn temporary(name: &str) -> String {
    format!("{name}.new")
}

/// Syncs a file's content, or a directory's names, to disk.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
