//! Opens entries of an untrusted tree: by a path below a descriptor, without following links and without crossing
//! mounts.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

const STAY: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens a path in one tree, without following links.
pub fn open(tree: impl AsFd, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    openat2(tree, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), STAY)
}

/// Opens a directory of one tree for reading or changing its entries.
pub fn open_dir(tree: impl AsFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    open(tree, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Reopens an `O_PATH` descriptor for reading, if it is a file or a directory.
pub fn reopen(node: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let link = format!("/proc/self/fd/{}", node.as_raw_fd());
    rustix::fs::open(link, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}
