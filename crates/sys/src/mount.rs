//! Mounts as descriptors (the mount API of Linux 5.2 and later): a mount is created detached, given its properties, and
//! only then attached to a namespace. Nothing is ever partly visible.

#![expect(unsafe_code, reason = "mount_setattr has no safe wrapper")]

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::namespace::{self, ChildStack, IdMap, SHARED_ID_BASE};

/// A detached copy of the mount at `path`.
pub fn clone_path(path: &Path) -> io::Result<OwnedFd> {
    clone_at(CWD, path)
}

/// A detached copy of the mount at `path` below `dir`.
pub fn clone_at(dir: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(dir, path, flags)?)
}

/// A detached copy of the mount of an open directory, from there on.
pub fn clone_opened(directory: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(directory, "", flags)?)
}

/// The same with all nested mounts. Without root, only this kind of copy is allowed: otherwise files covered by mounts
/// could be seen.
pub fn clone_tree(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, path, flags)?)
}

/// A new detached file system of type `kind`.
pub fn new_filesystem(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value)?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Attaches a detached mount at `target`, relative to this process's working directory.
pub fn attach(mount: impl AsFd, target: impl rustix::path::Arg) -> io::Result<()> {
    Ok(move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Covers a shared directory (relative to the working directory) with an overlay that adds nothing: the same files,
/// with private inodes. So other users' actions on them cannot be watched, and locks are private. `empty` is an empty
/// directory, because an overlay needs at least two.
pub fn cover_with_own_inodes(target: &str, empty: &str) -> io::Result<()> {
    let options = CString::new(format!("lowerdir={target}:{empty}"))?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    match rustix::mount::mount("overlay", target, "overlay", flags, Some(options.as_c_str())) {
        // If overlays are not permitted here, or nested too deeply, the files stay shared.
        Err(Errno::INVAL | Errno::NODEV | Errno::PERM | Errno::ACCESS) => Ok(()),
        result => Ok(result?),
    }
}

/// Sets attributes of a detached mount.
pub fn set_attributes(mount: impl AsFd, set: MountAttrFlags) -> io::Result<()> {
    setattr(mount, u64::from(set.bits()), 0, 0, Depth::One)
}

/// Sets attributes of a detached mount and everything below it.
pub fn set_attributes_of_tree(mount: impl AsFd, set: MountAttrFlags) -> io::Result<()> {
    setattr(mount, u64::from(set.bits()), 0, 0, Depth::All)
}

/// Enables the set-user-ID programs of a mount, whatever it was copied from.
pub fn allow_setuid(mount: impl AsFd) -> io::Result<()> {
    setattr(mount, 0, NOSUID, 0, Depth::One)
}

/// Sets attributes of a detached mount and maps its ids by a user namespace, so that set-user-ID programs may work,
/// because they cannot make anybody one of the host's users. Fails with EINVAL on file systems that cannot be
/// id-mapped.
pub fn set_id_map(
    mount: impl AsFd,
    set: MountAttrFlags,
    user_namespace: impl AsFd,
) -> io::Result<()> {
    let fd = user_namespace.as_fd().as_raw_fd();
    let set = u64::from(set.bits()) | libc::MOUNT_ATTR_IDMAP;
    setattr(mount, set, NOSUID, fd as u64, Depth::One)
}

/// The same, but set-user-ID programs give nothing: for trees that others write to as well.
pub fn map_ids_without_setuid(
    mount: impl AsFd,
    set: MountAttrFlags,
    user_namespace: impl AsFd,
) -> io::Result<()> {
    let fd = user_namespace.as_fd().as_raw_fd();
    let set = set | MountAttrFlags::MOUNT_ATTR_NOSUID;
    setattr(mount, u64::from(set.bits()) | libc::MOUNT_ATTR_IDMAP, 0, fd as u64, Depth::One)
}

/// Whether the mount at a path can be id-mapped, by trying it on a private copy.
pub fn can_be_id_mapped(path: &Path) -> io::Result<bool> {
    const STACK_BYTES: usize = 64 * 1024;
    let proc = rustix::fs::open("/proc", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (mut stack, ids) = (ChildStack::new(STACK_BYTES), IdMap::range(SHARED_ID_BASE));
    let users = namespace::user(proc.as_fd(), &mut stack, ids)?;
    match set_id_map(clone_path(path)?, MountAttrFlags::empty(), users) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Which mounts of a tree are affected.
enum Depth {
    One,
    All,
}

const NOSUID: u64 = MountAttrFlags::MOUNT_ATTR_NOSUID.bits() as u64;

fn setattr(mount: impl AsFd, set: u64, clear: u64, userns_fd: u64, depth: Depth) -> io::Result<()> {
    let flags = match depth {
        Depth::One => libc::AT_EMPTY_PATH,
        Depth::All => libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
    };
    let attr = libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd };
    // SAFETY: the descriptor is open for the whole call, the path is a NUL-terminated empty string,
    // and `attr` is a live struct of the size that is passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A path in a mount table: the kernel writes space, tab, newline and backslash as three octal digits.
pub fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = after
            .first_chunk::<3>()
            .filter(|_| byte == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match escaped {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}
