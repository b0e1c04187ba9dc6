//! Removes what a layer replaces or hides, however large and deep it is.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, mkdirat, renameat, unlinkat};
use rustix::io::Errno;

use sandkeep_tree::{beneath::open_dir, untrusted};

/// Removes a file, or a directory with its content. `root` is the top of the tree: nonempty directories are moved there
/// first, so that they are emptied without depth.
pub(super) fn remove(
    root: BorrowedFd<'_>,
    directory: BorrowedFd<'_>,
    name: &[u8],
) -> std::io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        done => return Ok(done?),
    }
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        done => return Ok(done?),
    }
    let place = untrusted::unused_name();
    mkdirat(root, &place, Mode::RWXU)?;
    let inside = open_dir(root, place.to_bytes())?;
    renameat(directory, name, &inside, c"removed")?;
    untrusted::empty(inside.as_fd())?;
    Ok(unlinkat(root, &place, AtFlags::REMOVEDIR)?)
}
