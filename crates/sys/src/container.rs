//! Mounts in a container that an engine has created.
//!
//! A container engine mounts `/proc` and `/dev` only in the container's root, and processes inside may not mount
//! anything. So one of our threads enters the container's mount namespace and mounts both a second time, below the
//! directory that becomes the guest's root: exactly the same mounts, with everything that the engine has masked in
//! them. An overlay root is mounted there first, and the guest waits for it. Ids in a container are the host's, so it
//! is mounted as the host's root, like the engine's own mounts.

#![expect(unsafe_code, reason = "a thread's own root and working directory have no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use rustix::thread::{
    ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare_unsafe,
};

use super::launcher::Ids;
use super::{mount, overlay};

/// The directories of an overlay root as detached mounts.
pub struct Overlay {
    pub volume: OwnedFd,
    pub layers: OwnedFd,
    pub names: overlay::Names,
}

/// Mounts the overlay at `root`, if it is one, and bind-mounts the container's own `/<name>` to `<root>/<name>`, for
/// each of the names. Existing mounts are kept. `process` is any process of the container. Blocks for a moment.
pub fn furnish(
    process: BorrowedFd<'_>,
    root: &Path,
    overlay: Option<&Overlay>,
    names: &[&str],
) -> io::Result<()> {
    // Entering the namespace is permanent, so a thread does it that ends afterwards.
    std::thread::scope(|scope| {
        let work = || {
            enter(process)?;
            overlay.map_or(Ok(()), |overlay| mount_overlay(overlay, root))?;
            show(root, names)
        };
        let thread = std::thread::Builder::new().name("container".to_owned());
        let shown = thread.spawn_scoped(scope, work)?.join();
        shown.unwrap_or_else(|_| Err(io::Error::other("the thread in the container panicked")))
    })
}

fn enter(process: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { unshare_unsafe(UnshareFlags::FS)? };
    Ok(move_into_thread_name_spaces(process, ThreadNameSpaceType::MOUNT)?)
}

/// An observer sees the earlier content of `root`, an empty directory for a moment, and the overlay.
fn mount_overlay(overlay: &Overlay, root: &Path) -> io::Result<()> {
    let place = root.to_str().ok_or(io::ErrorKind::InvalidInput)?;
    let (volume, layers) = (overlay.volume.as_fd(), overlay.layers.as_fd());
    let pieces = overlay::Pieces { layers, volume, names: &overlay.names };
    overlay::assemble(&pieces, Ids::Range { base: 0 }, place)?;
    let mounted = mount::clone_path(overlay::MOUNTED.as_ref())?;
    rustix::process::chdir("/")?;
    unmount(root, UnmountFlags::DETACH)?;
    mount::attach(mounted, root)
}

/// The sandbox can change everything below `root`: no link there is followed.
fn show(root: &Path, names: &[&str]) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, flags, Mode::empty())?;
    // Gaining rights by executing is prevented by other means.
    mount::allow_setuid(&root)?;
    for name in names {
        let target = openat(&root, *name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        if mount_id(&target)? != mount_id(&root)? {
            continue;
        }
        let tree = open_tree(
            CWD,
            Path::new("/").join(name),
            OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_RECURSIVE,
        )?;
        let here =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&tree, "", &target, "", here)?;
    }
    Ok(())
}

fn mount_id(dir: impl AsFd) -> io::Result<u64> {
    Ok(statx(dir, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}
