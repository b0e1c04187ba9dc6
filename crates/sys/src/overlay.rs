//! Overlays, mounted from inside the user namespace of their sandbox.
//!
//! An overlay accesses its directories with the rights of the process that mounted it. Root of the host would have too
//! many, and too few: its id is not among those that the directories are mapped to, so the overlay would silently be
//! read-only. So a child of ours enters the sandbox's user namespace, and a mount namespace that belongs to it,
//! attaches the directories there, mounts the overlay above them, and returns it as a detached mount. It shares our
//! descriptors and memory, and we are suspended meanwhile.
//!
//! The directories get names of one or two characters there, so that the mount options fit for any number of layers;
//! and these names are all that the sandbox can see of them in its mount table.

#![expect(unsafe_code, reason = "clone has no safe wrapper")]

use std::ffi::{CString, c_void};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, mkdir, symlink};
use rustix::mount::{MountAttrFlags, MountFlags};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};

use super::launcher::Ids;
use super::mount;
use super::namespace::{self, ChildStack};

/// The names in the two directories that an overlay is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// In the layers' directory, lowest first.
    pub lowers: Vec<String>,
    /// In the volume's directory.
    pub upper: String,
    pub work: String,
}

/// The directories themselves, as detached mounts with mapped ids.
pub struct Pieces<'a> {
    pub layers: BorrowedFd<'a>,
    pub volume: BorrowedFd<'a>,
    pub names: &'a Names,
}

/// Where an overlay is mounted, below the place given to [`assemble`].
pub const MOUNTED: &str = "m";

/// The overlay as a detached mount. `users` is the sandbox's user namespace and `ids` its mapping; `place` is any
/// directory in the mount namespace of this single-threaded process.
pub fn mount(
    pieces: &Pieces<'_>,
    users: BorrowedFd<'_>,
    ids: Ids,
    place: &str,
    stack: &mut ChildStack,
) -> io::Result<OwnedFd> {
    let mut job = Job { pieces, users, ids, place, outcome: Err(io::ErrorKind::Other.into()) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_PIDFD;
    let argument = (&raw mut job).cast::<c_void>();
    let mut pidfd: RawFd = -1;
    // SAFETY: the child runs on its own stack and uses only what `job` refers to. With CLONE_VFORK this
    // thread, the only one, stands still until it has exited, so nothing of that can change or go away.
    let pid = unsafe {
        libc::clone(carry_out, stack.top(), flags | libc::SIGCHLD, argument, &raw mut pidfd)
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: on success the kernel stored a new descriptor there, which nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    namespace::wait_gone(pidfd)?;
    job.outcome
}

struct Job<'a> {
    pieces: &'a Pieces<'a>,
    users: BorrowedFd<'a>,
    ids: Ids,
    place: &'a str,
    outcome: io::Result<OwnedFd>,
}

/// The child's code.
extern "C" fn carry_out(job: *mut c_void) -> libc::c_int {
    // SAFETY: the parent passed a `Job` that lives until this process has exited, and stands still.
    let job = unsafe { &mut *job.cast::<Job<'_>>() };
    job.outcome = enter(job.users, job.ids).and_then(|()| {
        assemble(job.pieces, job.ids, job.place)?;
        mount::clone_path(MOUNTED.as_ref())
    });
    0
}

fn enter(users: BorrowedFd<'_>, ids: Ids) -> io::Result<()> {
    ids.enter(users)?;
    // SAFETY: CLONE_FILES is not asked for, so all descriptors stay what they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    Ok(())
}

/// Mounts the overlay at [`MOUNTED`] below `place`, which becomes the working directory and is covered. For the single
/// id of a non-root daemon the mount is nosuid.
pub fn assemble(pieces: &Pieces<'_>, ids: Ids, place: &str) -> io::Result<()> {
    let options = [("mode", "755"), ("size", "1m")];
    let scratch = mount::new_filesystem("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    mount::attach(&scratch, place)?;
    rustix::process::chdir(place)?;
    for directory in ["l", "v", MOUNTED] {
        mkdir(directory, Mode::RWXU)?;
    }
    mount::attach(pieces.layers, "l")?;
    mount::attach(pieces.volume, "v")?;
    symlink(format!("v/{}", pieces.names.upper), "u")?;
    symlink(format!("v/{}", pieces.names.work), "w")?;
    for (at, lower) in pieces.names.lowers.iter().enumerate() {
        symlink(format!("l/{lower}"), at.to_string())?;
    }
    let numbers: Vec<_> = (0..pieces.names.lowers.len()).rev().map(|at| at.to_string()).collect();
    let options = format!("lowerdir={},upperdir=u,workdir=w,userxattr", numbers.join(":"));
    let options = CString::new(options)?;
    let flags = match ids {
        Ids::Range { .. } => MountFlags::NODEV,
        Ids::Single => MountFlags::NODEV | MountFlags::NOSUID,
    };
    Ok(rustix::mount::mount("overlay", MOUNTED, "overlay", flags, Some(options.as_c_str()))?)
}
