//! The guest's own set-up at its start.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{check, check_len, open_null, owned, pid};

/// No process in the sandbox may trace the guest or access its memory and descriptors, whatever its user. Must be
/// repeated after each spawn: a child that shares our memory and changes its user resets it to the host's
/// `fs.suid_dumpable`.
pub fn hide_from_ptrace() -> io::Result<()> {
    // SAFETY: takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }).map(drop)
}

/// The starting process may have bound our life to its own, until we could be found.
pub fn outlive_parent() {
    // SAFETY: takes integers only, and cannot fail with these.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0) };
}

/// The name that `ps` shows.
pub fn set_name(name: &CStr) {
    // SAFETY: `name` is NUL-terminated. It cannot fail, and would not matter.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Orphans become our children, so that they are reaped. For PID 1 this changes nothing.
pub fn adopt_orphans() -> io::Result<()> {
    if pid() == 1 {
        return Ok(());
    }
    // SAFETY: takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

pub fn set_umask(mask: libc::mode_t) {
    // SAFETY: cannot fail.
    unsafe { libc::umask(mask) };
}

/// Sets every signal to its default and blocks all of them; those that the guest handles arrive at the descriptor.
/// Children then need only an empty mask. With SIGPIPE blocked, writes fail instead.
pub fn take_over_signals() -> io::Result<OwnedFd> {
    // The kernel's own structure (handler, flags, restorer, mask): all zero is the default action. By a raw call,
    // because the C library reserves signals 32 to 34, and the starting process may have ignored them.
    let default = [0usize; 4];
    for signal in 1..=64 {
        // SAFETY: reads a valid structure; signals that cannot be changed fail harmlessly.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<usize>(),
                size_of::<u64>(),
            )
        };
    }
    // SAFETY: the sets are initialized by sigfillset and sigemptyset before they are used.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        check(libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()))?;
        let mut ours = std::mem::zeroed();
        libc::sigemptyset(&mut ours);
        libc::sigaddset(&mut ours, libc::SIGCHLD);
        libc::sigaddset(&mut ours, libc::SIGTERM);
        owned(libc::signalfd(-1, &ours, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
    }
}

/// A descriptor that the starting process left open for us.
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: only looks at the descriptor's flags and changes them.
    unsafe {
        let flags = check(libc::fcntl(fd, libc::F_GETFL))
            .map_err(|error| io::Error::other(format!("descriptor {fd}: {error}")))?;
        check(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The same for one that may be a standard descriptor, which are about to be replaced.
pub fn inherited_above_standard(fd: RawFd) -> io::Result<OwnedFd> {
    if fd > 2 {
        return inherited(fd);
    }
    // SAFETY: makes a new descriptor of one that we were told of.
    let copy = owned(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) })?;
    inherited(copy.into_raw_fd())
}

/// Reads from a descriptor that the starting process left open for us.
pub fn read_given(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `buffer` is writable for its length.
    check_len(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) })
}

/// A directory for lookups that stay valid when the root changes.
pub fn open_directory(path: &[u8]) -> io::Result<OwnedFd> {
    let path = CString::new(path)?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path is NUL-terminated.
    owned(unsafe { libc::open(path.as_ptr(), flags) })
}

/// Waits until an overlay is mounted on a directory; the kernel notifies pollers of the mount table.
pub fn wait_for_overlay(path: &Path, patience: Duration) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is NUL-terminated.
    let mounts = owned(unsafe { libc::open(c"/proc/self/mountinfo".as_ptr(), flags) })?;
    let deadline = Instant::now() + patience;
    while !is_overlay(&path)? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let wait = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        let mut watched =
            libc::pollfd { fd: mounts.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
        // SAFETY: one entry, which lives until the end of the call.
        match check(unsafe { libc::poll(&raw mut watched, 1, wait) }) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

fn is_overlay(path: &CStr) -> io::Result<bool> {
    // SAFETY: an all-zero statfs is valid, and the kernel fills it; the path is NUL-terminated.
    let found = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        check(libc::statfs(path.as_ptr(), &raw mut found))?;
        found
    };
    Ok(found.f_type as u64 == libc::OVERLAYFS_SUPER_MAGIC as u64)
}

/// Makes a directory the root of this and all later processes.
pub fn change_root(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the paths are NUL-terminated.
    unsafe {
        check(libc::chroot(path.as_ptr()))?;
        check(libc::chdir(c"/".as_ptr())).map(drop)
    }
}

/// Mounts a cgroup hierarchy of the kernel inside, and detaches it from the namespace.
pub fn mount_groups_out_of_sight() -> io::Result<OwnedFd> {
    // Any directory will do temporarily, because no other process exists.
    let place = c"/dev";
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: all strings are NUL-terminated.
    let root = unsafe {
        let options = c"job".as_ptr().cast();
        check(libc::mount(c"none".as_ptr(), place.as_ptr(), c"cgroup".as_ptr(), 0, options))?;
        let root = owned(libc::open(place.as_ptr(), flags));
        check(libc::umount2(place.as_ptr(), libc::MNT_DETACH))?;
        root?
    };
    Ok(root)
}

/// Covers our descriptors in /proc: gVisor's kernel of 2022 lets every process inside open them there, and so leave the
/// cgroup of an exec. We access them below the cover.
pub fn hide_own_descriptors() -> io::Result<()> {
    super::remember_own_descriptors()?;
    for place in [c"/proc/1/fd", c"/proc/1/fdinfo", c"/proc/1/task"] {
        // SAFETY: all strings are NUL-terminated.
        check(unsafe {
            let kind = c"tmpfs".as_ptr();
            libc::mount(c"none".as_ptr(), place.as_ptr(), kind, libc::MS_RDONLY, std::ptr::null())
        })?;
    }
    Ok(())
}

const CAP_SYS_ADMIN: u32 = 21;

/// Drops the right to mount and the like, permanently and for all children.
pub fn give_up_mounting() -> io::Result<()> {
    let header = [0x2008_0522u32, 0];
    // Effective, permitted and inheritable, in two halves.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: header and sets have the layout of version 3 of the interface.
    unsafe {
        let (header, sets) = (header.as_ptr(), sets.as_mut_ptr());
        check(libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0))?;
        check(libc::syscall(libc::SYS_capget, header, sets) as i32)?;
        (*sets).iter_mut().for_each(|set| *set &= !(1 << CAP_SYS_ADMIN));
        check(libc::syscall(libc::SYS_capset, header, sets) as i32).map(drop)
    }
}

/// Marks every descriptor but the standard ones as close-on-exec, including unknown ones.
pub fn keep_descriptors_from_children() {
    // SAFETY: changes flags of descriptors only; on a kernel without it children do the same.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Closes every unknown descriptor, so that nothing of the starting process stays open.
pub fn close_unknown(known: &[Option<RawFd>]) {
    let known = known.iter().flatten();
    let mut known: Vec<u32> = known.filter_map(|fd| u32::try_from(*fd).ok()).collect();
    known.retain(|fd| *fd > 2);
    known.sort_unstable();
    let mut first = 3;
    for last in known.into_iter().chain([u32::MAX]) {
        let before = if last == u32::MAX { last } else { last.saturating_sub(1) };
        if first <= before {
            // SAFETY: nothing in this process has opened a descriptor yet; a kernel without the
            // call leaves them open, and children do not get them.
            unsafe { libc::syscall(libc::SYS_close_range, first, before, 0) };
        }
        first = last.saturating_add(1);
    }
}

/// Replaces 0, 1 and 2: they belong to another process, and none of our pipes may get such a number, because a child's
/// dup2 could overwrite one that it still needs.
pub fn take_standard_descriptors() -> io::Result<()> {
    loop {
        let fd = open_null()?;
        if fd.as_raw_fd() <= 2 {
            let _ = fd.into_raw_fd();
            continue;
        }
        for target in 0..=2 {
            // SAFETY: replaces a descriptor that nothing here refers to.
            check(unsafe { libc::dup2(fd.as_raw_fd(), target) })?;
        }
        return Ok(());
    }
}

/// The bounding set, as [`limit_capabilities`] left it: this process has one thread, and nothing else changes it.
static BOUNDING: AtomicU64 = AtomicU64::new(u64::MAX);

/// The capabilities that executed programs could get.
pub fn bounding_set() -> u64 {
    BOUNDING.load(Ordering::Relaxed)
}

/// The starting process may have left more in the bounding and ambient sets than we have: executed programs must not
/// get more than that. Without CAP_SETPCAP there is nothing to pass on.
pub fn limit_capabilities() -> io::Result<()> {
    let permitted = permitted_capabilities()?;
    // SAFETY: takes integers only.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    let mut left = 0;
    for capability in 0..u64::BITS as libc::c_int {
        // SAFETY: takes integers only; the kernel answers -1 for one that it does not know.
        let held = unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) } == 1;
        if !held {
            continue;
        }
        let drop = permitted & (1 << capability) == 0;
        // SAFETY: takes integers only.
        if !drop || unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            left |= 1 << capability;
        }
    }
    BOUNDING.store(left, Ordering::Relaxed);
    Ok(())
}

fn permitted_capabilities() -> io::Result<u64> {
    /// `_LINUX_CAPABILITY_VERSION_3`, and this process.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    let mut data = [[0u32; 3]; 2];
    // SAFETY: both have the layout of version 3: two halves of effective, permitted, inheritable.
    let got = unsafe { libc::syscall(libc::SYS_capget, HEADER.as_ptr(), data.as_mut_ptr()) };
    match got {
        0 => Ok(u64::from(data[0][1]) | u64::from(data[1][1]) << 32),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises the guest's descriptor limit, and returns the limits for commands.
pub fn raise_descriptor_limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for both calls; a failure leaves the lower limit, which only means
    // that fewer execs fit.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let raised = libc::rlimit { rlim_cur: limit.rlim_max.min(65_536), ..limit };
        if raised.rlim_cur > limit.rlim_cur {
            libc::setrlimit(libc::RLIMIT_NOFILE, &raised);
        }
    }
    limit
}

/// No process of the sandbox dumps core, and no core is passed to a program of the host: the kernel runs that program
/// outside of all namespaces. A limit of one byte prevents it from being started.
pub fn forbid_cores() {
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: `limit` is valid for the call; lowering a limit cannot fail.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
}

/// Ends the guest at once. As PID 1 it takes every process of the sandbox with it.
pub fn exit(code: i32) -> ! {
    // SAFETY: never returns, and nothing has to be flushed.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_never_comes_is_given_up() {
        let gave_up = wait_for_overlay(Path::new("/proc"), Duration::from_millis(1));
        assert_eq!(gave_up.expect_err("it is no overlay").kind(), io::ErrorKind::TimedOut);
    }
}
