//! The launcher's own mount namespace, of which a child's is a copy: an empty root and /dev. Copying it
//! costs in proportion to what is mounted, so there is next to nothing.

#![expect(unsafe_code, reason = "unshare has no safe wrapper")]

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mkdir, mknodat, open, symlink};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount};

use super::child::MASKED;
use crate::sys::mount;

/// What the launcher is to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Root,
    /// All-powerful in a user namespace of its own, and nowhere else.
    User,
}

impl Standing {
    /// That of this process.
    pub fn own() -> Self {
        match rustix::process::geteuid().is_root() {
            true => Self::Root,
            false => Self::User,
        }
    }
}

/// Where a child that is not root puts its root before it pivots to it.
pub const NEW_ROOT: &str = "/root";

/// Character devices with the major number 1, and their minor ones.
const MEMORY_DEVICES: [(&str, u32); 5] =
    [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)];
const TTY: &str = "tty";

/// What of the host stays in sight of a launcher that is not root.
struct Kept {
    /// It may not make device nodes.
    devices: Vec<(&'static str, OwnedFd)>,
    /// It may mount a /proc only where another can be seen whole.
    proc: OwnedFd,
}

impl Kept {
    fn of_host() -> io::Result<Self> {
        let names = MEMORY_DEVICES.into_iter().map(|(name, _)| name).chain([TTY]);
        let device = |name| Ok((name, mount::clone_path(&Path::new("/dev").join(name))?));
        Ok(Self {
            devices: names.map(device).collect::<io::Result<_>>()?,
            proc: mount::clone_tree("/proc".as_ref())?,
        })
    }
}

/// Leaves the host's mounts for a namespace with an empty root and /dev.
pub fn shrink_namespace(standing: Standing) -> io::Result<()> {
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let kept = match standing {
        Standing::Root => None,
        Standing::User => Some(Kept::of_host()?),
    };
    let root = small_tmpfs(MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    // Any directory will do to hang the new root up; this one always exists.
    mount::attach(&root, "/proc")?;
    rustix::process::fchdir(&root)?;
    for directory in ["dev", "proc", &NEW_ROOT[1..]] {
        mkdir(directory, Mode::from_raw_mode(0o755))?;
    }
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    let dev = small_tmpfs(MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    mount::attach(&dev, "/dev")?;
    let before = rustix::process::umask(Mode::empty());
    match kept {
        None => make_devices()?,
        Some(Kept { devices, proc }) => {
            devices.iter().try_for_each(|(name, node)| show_device(name, node))?;
            mount::attach(&proc, "/proc")?;
        }
    }
    fill_dev()?;
    rustix::process::umask(before);
    mount::set_attributes(&dev, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    mount::set_attributes(&root, MountAttrFlags::MOUNT_ATTR_RDONLY)
}

fn small_tmpfs(attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let attributes = attributes | MountAttrFlags::MOUNT_ATTR_NOSUID;
    mount::new_filesystem("tmpfs", &[("mode", "755"), ("size", "64k")], attributes)
}

/// Real device nodes, made once and shared read-only by all sandboxes.
fn make_devices() -> io::Result<()> {
    let memory = MEMORY_DEVICES.map(|(name, minor)| (name, makedev(1, minor)));
    for (name, device) in memory.into_iter().chain([(TTY, makedev(5, 0))]) {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, format!("/dev/{name}"), FileType::CharacterDevice, mode, device)?;
    }
    Ok(())
}

fn show_device(name: &str, node: &OwnedFd) -> io::Result<()> {
    let path = format!("/dev/{name}");
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    drop(open(&path, flags, Mode::from_raw_mode(0o444))?);
    mount::attach(node, path)
}

fn fill_dev() -> io::Result<()> {
    mkdir("/dev/pts", Mode::from_raw_mode(0o755))?;
    mkdir("/dev/shm", Mode::from_raw_mode(0o1777))?;
    let links = [
        ("pts/ptmx", "/dev/ptmx"),
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ];
    for (target, link) in links {
        symlink(target, link)?;
    }
    Ok(())
}

/// A mount of the shared /dev, and one of its null for each masked file.
pub fn dev_mounts() -> io::Result<(OwnedFd, Vec<OwnedFd>)> {
    let dev = mount::clone_tree("/dev".as_ref())?;
    let nulls = MASKED.iter().map(|_| mount::clone_path("/dev/null".as_ref()));
    Ok((dev, nulls.collect::<io::Result<_>>()?))
}
