//! The small /dev of a sandbox: a few harmless devices, terminals of its own, and shared memory that counts as its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, makedev, mkdirat, mknodat, symlinkat};
use rustix::mount::MountAttrFlags;

use super::mount;

/// The group of terminals on every Linux distribution.
pub const TTY_GID: u32 = 5;

/// Maximum number of terminals of one sandbox: the kernel has a few thousand for the whole machine.
pub const TERMINALS_MAX: u32 = 128;

const QUIET: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// The devices, with their major and minor numbers.
pub const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Creates real device nodes, and completes the directory. Only root on the host may do that.
pub fn fill(dir: impl AsFd) -> io::Result<()> {
    without_umask(|| {
        for (name, major, minor) in DEVICES {
            let mode = Mode::from_raw_mode(0o666);
            mknodat(&dir, name, FileType::CharacterDevice, mode, makedev(major, minor))?;
        }
        Ok(())
    })?;
    furnish(dir)
}

/// Creates the usual links, and the mount points of [`terminals`] and [`shared_memory`].
pub fn furnish(dir: impl AsFd) -> io::Result<()> {
    without_umask(|| furnish_plainly(dir.as_fd()))
}

fn without_umask(make: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let before = rustix::process::umask(Mode::empty());
    let made = make();
    rustix::process::umask(before);
    made
}

fn furnish_plainly(dir: impl AsFd) -> io::Result<()> {
    mkdirat(&dir, "pts", Mode::from_raw_mode(0o755))?;
    mkdirat(&dir, "shm", Mode::from_raw_mode(0o1777))?;
    let links = [
        ("pts/ptmx", "ptmx"),
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
    ];
    for (target, link) in links {
        symlinkat(target, &dir, link)?;
    }
    Ok(())
}

/// A detached /dev/pts, whose terminals belong to the group `tty` (a host gid).
pub fn terminals(tty: u32) -> io::Result<OwnedFd> {
    let (tty, max) = (tty.to_string(), TERMINALS_MAX.to_string());
    let options =
        [("ptmxmode", "0666"), ("mode", "620"), ("gid", tty.as_str()), ("max", max.as_str())];
    mount::new_filesystem("devpts", &options, QUIET)
}

/// A detached /dev/shm that belongs to `owner` (a host uid).
pub fn shared_memory(owner: u32, bytes: u64) -> io::Result<OwnedFd> {
    let (owner, size) = (owner.to_string(), bytes.to_string());
    let owner = owner.as_str();
    let options = [("mode", "1777"), ("size", size.as_str()), ("uid", owner), ("gid", owner)];
    mount::new_filesystem("tmpfs", &options, QUIET | MountAttrFlags::MOUNT_ATTR_NODEV)
}
