//! The small /dev of a sandbox: a handful of harmless devices, terminals of its own, and shared memory
//! that counts as its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, makedev, mkdirat, mknodat, symlinkat};
use rustix::mount::MountAttrFlags;

use super::mount;

/// The group of terminals on every Linux distribution.
pub const TTY_GID: u32 = 5;

/// The most terminals of one sandbox: the kernel has a few thousand for the whole machine.
pub const TERMINALS_MAX: u32 = 128;

const QUIET: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Makes real device nodes, the usual links, and the places for [`terminals`] and [`shared_memory`], in
/// an empty directory. Only root of the host may.
pub fn fill(dir: impl AsFd) -> io::Result<()> {
    let before = rustix::process::umask(Mode::empty());
    let filled = fill_without_umask(dir.as_fd());
    rustix::process::umask(before);
    filled
}

fn fill_without_umask(dir: impl AsFd) -> io::Result<()> {
    let nodes = [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)]
        .map(|(name, minor)| (name, makedev(1, minor)));
    for (name, device) in nodes.into_iter().chain([("tty", makedev(5, 0))]) {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(&dir, name, FileType::CharacterDevice, mode, device)?;
    }
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

/// A detached /dev/pts for a sandbox whose ids begin at `id_base`.
pub fn terminals(id_base: u32) -> io::Result<OwnedFd> {
    let (tty, max) = ((id_base + TTY_GID).to_string(), TERMINALS_MAX.to_string());
    let options =
        [("ptmxmode", "0666"), ("mode", "620"), ("gid", tty.as_str()), ("max", max.as_str())];
    mount::new_filesystem("devpts", &options, QUIET)
}

/// A detached /dev/shm for a sandbox whose ids begin at `id_base`.
pub fn shared_memory(id_base: u32, bytes: u64) -> io::Result<OwnedFd> {
    let (root, size) = (id_base.to_string(), bytes.to_string());
    let options =
        [("mode", "1777"), ("size", size.as_str()), ("uid", root.as_str()), ("gid", root.as_str())];
    mount::new_filesystem("tmpfs", &options, QUIET | MountAttrFlags::MOUNT_ATTR_NODEV)
}
