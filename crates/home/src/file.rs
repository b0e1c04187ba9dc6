//! Writing a small file so that a reader sees the old or the new content, never a part; and, apart
//! from that, making it survive a power cut. The end of the daemon alone takes nothing that was
//! written.

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

/// Where the content stands until it is whole.
pub(super) fn temporary(name: &str) -> String {
    format!("{name}.new")
}

/// Puts a file's content, or a directory's names, on disk.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
