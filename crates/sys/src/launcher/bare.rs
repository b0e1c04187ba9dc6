//! The launcher's own mount namespace, of which a child's is a copy: an empty root and /dev. The cost of a copy is
//! proportional to the number of mounts, so there are hardly any.

#![expect(unsafe_code, reason = "unshare has no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, mkdir, open};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount};

use super::child::{MASKED, MASKED_DIRS};
use crate::{dev, mount};

/// The launcher's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LauncherRights {
    Root,
    /// All capabilities in a user namespace of its own, and none elsewhere.
    User,
}

impl LauncherRights {
    /// Those of this process.
    pub fn own() -> Self {
        if rustix::process::geteuid().is_root() { Self::Root } else { Self::User }
    }
}

/// Where a non-root child puts its root before it pivots to it.
pub const NEW_ROOT: &str = "/root";

/// What a non-root launcher keeps of the host.
struct Kept {
    /// It may not create device nodes.
    devices: Vec<(&'static str, OwnedFd)>,
    /// It may mount /proc only where another complete one is visible.
    proc: OwnedFd,
}

impl Kept {
    fn of_host() -> io::Result<Self> {
        let device = |name| Ok((name, mount::clone_path(&Path::new("/dev").join(name))?));
        let names = dev::DEVICES.map(|(name, ..)| name).into_iter();
        Ok(Self {
            devices: names.map(device).collect::<io::Result<_>>()?,
            proc: mount::clone_tree("/proc".as_ref())?,
        })
    }
}

/// Replaces the host's mounts by a namespace with an empty root and /dev.
pub fn shrink_namespace(standing: LauncherRights) -> io::Result<()> {
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let kept = match standing {
        LauncherRights::Root => None,
        LauncherRights::User => Some(Kept::of_host()?),
    };
    let root = small_tmpfs(MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    // Any directory will do for attaching the new root; this one always exists.
    mount::attach(&root, "/proc")?;
    rustix::process::fchdir(&root)?;
    for directory in ["dev", "proc", &NEW_ROOT[1..]] {
        mkdir(directory, Mode::from_raw_mode(0o755))?;
    }
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    let devices = small_tmpfs(MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    mount::attach(&devices, "/dev")?;
    match kept {
        // Real device nodes, created once and shared read-only by all sandboxes.
        None => dev::fill(&devices)?,
        Some(Kept { devices: shown, proc }) => {
            shown.iter().try_for_each(|(name, node)| show_device(name, node))?;
            dev::furnish(&devices)?;
            mount::attach(&proc, "/proc")?;
        }
    }
    mount::set_attributes(&devices, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    mount::set_attributes(&root, MountAttrFlags::MOUNT_ATTR_RDONLY)
}

fn small_tmpfs(attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let attributes = attributes | MountAttrFlags::MOUNT_ATTR_NOSUID;
    mount::new_filesystem("tmpfs", &[("mode", "755"), ("size", "64k")], attributes)
}

fn show_device(name: &str, node: &OwnedFd) -> io::Result<()> {
    let path = format!("/dev/{name}");
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    drop(open(&path, flags, Mode::from_raw_mode(0o444))?);
    mount::attach(node, path)
}

/// A mask of a part of /proc: its source is a path in the launcher's own namespace.
pub type Mask = (&'static str, &'static str);

/// The parts to be masked that this kernel has.
pub fn masks(proc: impl AsFd) -> Vec<Mask> {
    let files = MASKED.map(|target| (target, "/dev/null"));
    // Nothing is ever mounted there in this namespace.
    let dirs = MASKED_DIRS.map(|target| (target, NEW_ROOT));
    let is_there = |(target, _): &Mask| {
        let name = target.trim_start_matches("proc/");
        accessat(&proc, name, Access::EXISTS, AtFlags::empty()).is_ok()
    };
    files.into_iter().chain(dirs).filter(is_there).collect()
}

/// A mount of the shared /dev.
pub fn dev_mount() -> io::Result<OwnedFd> {
    mount::clone_tree("/dev".as_ref())
}

/// A mount for each masked part.
pub fn mask_mounts(masks: &[Mask]) -> io::Result<Vec<(&'static str, OwnedFd)>> {
    let made =
        masks.iter().map(|(target, cover)| Ok((*target, mount::clone_path(cover.as_ref())?)));
    made.collect()
}
