//! Mounts within a container that somebody else has made.
//!
//! A container engine mounts `/proc` and `/dev` in the container's root and nowhere else, and a process
//! inside may mount nothing. So a thread of ours enters the container's mount namespace and shows both a
//! second time, beneath the directory that the guest takes for its root: the very same mounts, with all that
//! the engine has hidden in them. A root that is an overlay is mounted there first, and the guest waits for it.
//! Ids in a container are the host's, so it is mounted as the host's root, as the engine's own are.

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

/// A root that is an overlay: its directories as detached mounts.
pub struct Overlay {
    pub volume: OwnedFd,
    pub layers: OwnedFd,
    pub names: overlay::Names,
}

/// Mounts the overlay at `root`, if that is one, and shows the container's own `/<name>` at `<root>/<name>`
/// too, for each of the names, to all in it. What is shown already stays. `process` is any process of
/// the container. It blocks for a moment.
pub fn furnish(
    process: BorrowedFd<'_>,
    root: &Path,
    overlay: Option<&Overlay>,
    names: &[&str],
) -> io::Result<()> {
    // The namespace is entered for good, so by a thread that ends with it.
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

/// Whoever looks sees what was at `root` before, an empty directory for a moment, and the overlay.
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

/// What is beneath `root` is the sandbox's to change: no link there is followed.
fn show(root: &Path, names: &[&str]) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, flags, Mode::empty())?;
    // Who may gain nothing by executing is kept from it by another means.
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
