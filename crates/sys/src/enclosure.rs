//! A process of ours with one purpose and one directory: it sees nothing else of the host, and keeps only the rights
//! that it needs. It must have one thread when it is enclosed; threads that it creates later are enclosed, too.

#![expect(unsafe_code, reason = "unshare has no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libc::c_long;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, unshare_unsafe,
};

use crate::{landlock, mount, seccomp};

/// Makes a detached mount the root of this process, in namespaces of its own. Nothing else remains mounted.
pub fn enter(root: impl AsFd) -> io::Result<()> {
    let apart = UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWIPC;
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { unshare_unsafe(apart | UnshareFlags::NEWUTS)? };
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    // Any directory will do for attaching the new root; this one always exists.
    mount::attach(&root, "/proc")?;
    rustix::process::fchdir(&root)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Gives up all capabilities but these, all files but those below `root` and those that are open, and all system calls
/// but these. Permanent.
pub fn restrict(root: impl AsFd, kept: CapabilitySet, calls: &[c_long]) -> io::Result<()> {
    for capability in CapabilitySet::all().difference(kept).iter() {
        match remove_capability_from_bounding_set(capability) {
            // One that this kernel does not know.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    set_no_new_privs(true)?;
    if landlock::available() {
        landlock::Ruleset::beneath(root.as_fd().as_raw_fd())?.restrict()?;
    }
    seccomp::Filter::only(calls).load()
}
