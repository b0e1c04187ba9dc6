//! FUSE as far as the kernel's side of it needs more than reading and writing a device: connections, mounts, files
//! that the kernel reads by itself, and the end of a connection.

#![expect(unsafe_code, reason = "the ioctls of /dev/fuse have no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use crate::mount;

/// A new connection, which no mount has yet.
pub fn open() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// A detached mount whose requests come from the connection. The kernel checks permissions by mode bits, and other
/// users than the server's may use it.
pub fn mount(connection: impl AsFd) -> io::Result<OwnedFd> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // The name that mount tables show.
    fsconfig_set_string(&context, "source", "codebase")?;
    fsconfig_set_string(&context, "subtype", "sandkeep")?;
    // As a number: not every kernel takes the descriptor itself here.
    fsconfig_set_string(&context, "fd", connection.as_fd().as_raw_fd().to_string())?;
    for (key, value) in [("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")] {
        fsconfig_set_string(&context, key, value)?;
    }
    for flag in ["default_permissions", "allow_other"] {
        fsconfig_set_flag(&context, flag)?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// The number of a mount's connection, without asking its server.
pub fn connection_of(mounted: impl AsFd) -> io::Result<u32> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(mounted, "", flags, StatxFlags::empty())?;
    Ok(found.stx_dev_minor)
}

/// Ends a connection: every process that waits for its server gets an error. A connection that is gone already is fine.
pub fn abort(connection: u32) -> io::Result<()> {
    // A mount of our own: not every machine has one where it belongs.
    let control = mount::new_filesystem("fusectl", &[], MountAttrFlags::empty())?;
    let path = format!("{connection}/abort");
    match openat(&control, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => Ok(rustix::io::write(&file, b"1").map(drop)?),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The layout of the kernel's `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

const BACKING_OPEN: libc::c_ulong = 0x4010_E501;
const BACKING_CLOSE: libc::c_ulong = 0x4004_E502;

/// Lets the kernel use this file in place of messages about its contents. Needs CAP_SYS_ADMIN.
pub fn backing_open(connection: impl AsFd, file: impl AsFd) -> io::Result<u32> {
    let map = BackingMap { fd: file.as_fd().as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: both descriptors are open, and `map` is a live struct of the layout that the kernel reads.
    let id =
        unsafe { libc::ioctl(connection.as_fd().as_raw_fd(), BACKING_OPEN as _, &raw const map) };
    match u32::try_from(id) {
        Ok(id) => Ok(id),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

pub fn backing_close(connection: impl AsFd, id: u32) -> io::Result<()> {
    let fd: RawFd = connection.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and `id` is a live number, which the kernel reads.
    match unsafe { libc::ioctl(fd, BACKING_CLOSE as _, &raw const id) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
