//! Empties and measures untrusted trees below a descriptor. Symbolic links are never followed and mounts never crossed.
//! Emptying works at any depth, because directories are moved to the top as they are found.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, chmod, openat, openat2,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use sandkeep_core::limits;

/// Maximum nesting of subvolumes to remove.
const SUBVOLUMES_NESTED_MAX: usize = 32;

/// Opens a real directory: no symbolic link, no mount point.
pub fn open_dir(parent: impl AsFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    openat2(
        parent,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS,
    )
}

/// Describes the error of a non-blocking open: a lease, held by a process inside.
pub fn leased(error: Errno) -> io::Error {
    match error {
        Errno::AGAIN => io::Error::new(
            io::ErrorKind::WouldBlock,
            "a process in the sandbox holds a lease on it; try again, or end that process",
        ),
        error => error.into(),
    }
}

/// The names in a directory, and their types.
pub fn entries(directory: impl AsFd) -> rustix::io::Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            found.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(found)
}

/// Removes everything in a directory. Entries that vanish meanwhile are fine. If one cannot be removed the rest is, and
/// the first failure is returned.
pub fn empty(top: impl AsFd) -> io::Result<()> {
    empty_nested(top, 0)
}

fn empty_nested(top: impl AsFd, nested: usize) -> io::Result<()> {
    let top = top.as_fd();
    let mut stuck = HashSet::new();
    let mut first_error = None;
    loop {
        let mut children = entries(top)?;
        children.retain(|(name, _)| !stuck.contains(name));
        if children.is_empty() {
            return first_error.map_or(Ok(()), Err);
        }
        for (name, _) in children {
            if let Err(error) = remove_lifting(top, &name, nested) {
                first_error = first_error.or(Some(describe(&name, error)));
                stuck.insert(name);
            }
        }
    }
}

/// Removes one child of `top`; the directories in it are moved to `top`.
fn remove_lifting(top: impl AsFd, name: &CStr, nested: usize) -> rustix::io::Result<()> {
    let top = top.as_fd();
    match remove_flat(top, name) {
        Err(Errno::NOTEMPTY) => {}
        done => return done,
    }
    let directory = open_to_change(top, name)?;
    let mut first_error = None;
    for (child, _) in entries(&directory)? {
        let done = match remove_flat(&directory, &child) {
            Err(Errno::NOTEMPTY) => lift(&directory, &child, top, nested),
            done => done,
        };
        first_error = first_error.or(done.err());
    }
    match first_error {
        Some(error) => Err(error),
        None => remove_flat(top, name),
    }
}

/// Removes a file or an empty directory.
fn remove_flat(parent: impl AsFd, name: &CStr) -> rustix::io::Result<()> {
    let parent = parent.as_fd();
    let done = match unlinkat(parent, name, AtFlags::empty()) {
        // Linux returns EISDIR; POSIX, and some file systems, EPERM.
        Err(Errno::ISDIR | Errno::PERM) => match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTDIR) => Err(Errno::PERM),
            done => done,
        },
        done => done,
    };
    match done {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::EXIST) => Err(Errno::NOTEMPTY),
        Err(error) => Err(error),
    }
}

/// Moves a directory up into `top`, under an unused name.
fn lift(parent: impl AsFd, name: &CStr, top: impl AsFd, nested: usize) -> rustix::io::Result<()> {
    let (parent, top) = (parent.as_fd(), top.as_fd());
    let lifted = unused_name();
    let rename = || renameat_with(parent, name, top, &lifted, RenameFlags::NOREPLACE);
    let done = match rename() {
        // Its owner may not have write permission for it.
        Err(Errno::ACCESS) => {
            drop(open_to_change(parent, name)?);
            rename()
        }
        done => done,
    };
    match done {
        Err(Errno::NOENT) => Ok(()),
        // A btrfs subvolume created inside: its directories cannot be moved out of it, so it is emptied as a tree of
        // its own. Sandboxes cannot create any, so the nesting is limited.
        Err(Errno::XDEV) if nested >= SUBVOLUMES_NESTED_MAX => Err(Errno::LOOP),
        Err(Errno::XDEV) => {
            empty_nested(open_to_change(parent, name)?, nested + 1)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            remove_flat(parent, name)
        }
        done => done,
    }
}

/// Opens a directory for removing its entries, even if its mode forbids that.
fn open_to_change(parent: impl AsFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let parent = parent.as_fd();
    if !rustix::process::geteuid().is_root() {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(parent, name, flags, Mode::empty())?;
        chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), Mode::RWXU)?;
    }
    open_dir(parent, name)
}

/// An unused name.
pub fn unused_name() -> CString {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).expect("the kernel's random source always answers once booted");
    let name = format!("{:032x}", u128::from_ne_bytes(bytes));
    CString::new(name).expect("hexadecimal digits hold no NUL")
}

fn describe(name: &CStr, error: Errno) -> io::Error {
    let kind = io::Error::from(error).kind();
    let name = name.to_string_lossy();
    io::Error::new(kind, format!("{name} or something in it stays: {error}"))
}

/// The tree's size on disk, each file counted once. Directories deeper than [`limits::WALK_DEPTH_MAX`], or without
/// permission, are skipped.
pub fn disk_bytes(top: OwnedFd) -> io::Result<u64> {
    let mut linked = HashSet::new();
    let mut open = vec![(entries(&top)?, top)];
    let mut blocks = 0;
    while let Some((names, directory)) = open.last_mut() {
        let Some((name, _)) = names.pop() else {
            open.pop();
            continue;
        };
        let stat = match statat(&*directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let directory_below = is_dir(&stat);
        if directory_below || stat.st_nlink == 1 || linked.insert((stat.st_dev, stat.st_ino)) {
            blocks += u64::try_from(stat.st_blocks).unwrap_or(0);
        }
        if directory_below && open.len() < limits::WALK_DEPTH_MAX {
            let parent = &open.last().expect("it was there a moment ago").1;
            match open_dir(parent, &name).and_then(|below| Ok((entries(&below)?, below))) {
                Ok(below) => open.push(below),
                Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(blocks * 512)
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}
