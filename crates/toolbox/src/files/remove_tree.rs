//! Removes a directory with its content at any depth: its creator determines the depth, and this also runs on the host.
//! So there is no recursion, and one descriptor: the way down is remembered by names, and the way up is `..`, which
//! must lead back to the same directory.

use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A missing directory is fine.
pub fn remove_tree(above: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
    let mut at = match openat(above, &name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let mut way = vec![(name, identity(above)?)];
    while let Some((name, parent)) = way.pop() {
        if let Some((below, child)) = clear(&at)? {
            let here = identity(&at)?;
            way.extend([(name, parent), (child, here)]);
            at = below;
            continue;
        }
        let up = openat(&at, c"..", DIRECTORY, Mode::empty())?;
        if identity(&up)? != parent {
            // It was moved meanwhile.
            return Err(Errno::BUSY);
        }
        match unlinkat(&up, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        at = up;
    }
    Ok(())
}

/// Removes a directory's entries up to the first nonempty directory, which is opened.
fn clear(directory: &OwnedFd) -> Result<Option<(OwnedFd, CString)>, Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
        match unlinkat(directory, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let below = openat(directory, name, DIRECTORY, Mode::empty())?;
                return Ok(Some((below, name.to_owned())));
            }
            Err(Errno::NOTDIR) => return Err(Errno::PERM),
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64), Errno> {
    let stat = fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkdirat};

    #[test]
    fn a_tree_goes_however_deep_it_is() {
        // In memory: a disk takes minutes for this many.
        let top = tempfile::tempdir_in("/dev/shm").expect("a directory");
        std::fs::write(top.path().join("beside"), "stays").expect("a file");
        let above = openat(CWD, top.path(), DIRECTORY, Mode::empty()).expect("it is there");
        mkdirat(&above, "deep", Mode::RWXU).expect("a directory");
        let mut at = openat(&above, "deep", DIRECTORY, Mode::empty()).expect("it is there");
        for _ in 0..40_000 {
            for name in ["d", "beside"] {
                mkdirat(&at, name, Mode::RWXU).expect("a directory");
            }
            at = openat(&at, "d", DIRECTORY, Mode::empty()).expect("it is there");
        }
        drop(at);
        // With less stack than a thread of the daemon.
        let small = std::thread::Builder::new().stack_size(128 * 1024);
        let removing = small.spawn(move || {
            remove_tree(&above, OsStr::new("deep"))?;
            remove_tree(&above, OsStr::new("nowhere"))
        });
        removing.expect("a thread").join().expect("it lives").expect("it is removed");
        let left: Vec<_> = std::fs::read_dir(top.path()).expect("a directory").collect();
        assert_eq!(left.len(), 1);
    }
}
