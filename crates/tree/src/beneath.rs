//! Opening what lies in a tree that somebody else filled: by a path beneath a descriptor, without following
//! any link and without crossing a mount.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

const STAY: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens what a path is in one tree, without following any link.
pub fn open(tree: impl AsFd, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    openat2(tree, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), STAY)
}

/// Opens a directory of one tree to look into it or to change something in it.
pub fn open_dir(tree: impl AsFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    open(tree, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens a file to read it that so far could only be looked at, if it is a file or a directory.
pub fn reopen(node: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let link = format!("/proc/self/fd/{}", node.as_raw_fd());
    rustix::fs::open(link, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}
