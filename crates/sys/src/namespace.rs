//! Namespaces prepared before a launch, by the single-threaded launcher.

#![expect(unsafe_code, reason = "clone and interface ioctls have no safe wrappers")]

use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Uid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{
    CapabilitySets, LinkNameSpaceType, UnshareFlags, capabilities, move_into_link_name_space,
    set_capabilities, set_thread_res_uid, unshare_unsafe,
};

/// Number of ids of one sandbox.
pub const ID_RANGE: u32 = 65_536;
/// The range shared by all sandboxes whose volumes cannot be id-mapped: there the files themselves have these ids, so
/// the range is the same for every daemon and permanent. It is the last possible range, and never assigned to a single
/// sandbox.
pub const SHARED_ID_BASE: u32 = (1 << 31) - ID_RANGE;

/// The uid of commands inside.
pub const USER_ID: u32 = 1000;

/// The mapping of a user namespace's ids to the outer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMap {
    inside: u32,
    outside: u32,
    count: u32,
}

impl IdMap {
    /// All ids of a sandbox, starting with root at `base`.
    pub fn range(base: u32) -> Self {
        Self { inside: 0, outside: base, count: ID_RANGE }
    }

    /// One id, which is the user's inside.
    pub const fn single(outside: u32) -> Self {
        Self { inside: USER_ID, outside, count: 1 }
    }

    /// The owner of the namespace, who is charged for everything counted in it: the kernel passes the counts of a user
    /// namespace on to its creator. Without root that is always ourselves.
    fn owner(self) -> Option<Uid> {
        let is_ours = self.count == 1 || !rustix::process::geteuid().is_root();
        (!is_ours).then(|| Uid::from_raw(self.outside))
    }

    fn line(self) -> String {
        format!("{} {} {}\n", self.inside, self.outside, self.count)
    }
}

/// Moves this single-threaded, non-root process into a user namespace of its own: there it has all capabilities, and
/// one id.
pub fn enter_user() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER)? };
    // The kernel requires it: a group that denies access to its members must not be dropped.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", IdMap::single(uid).line())?;
    std::fs::write("/proc/self/gid_map", IdMap::single(gid).line())
}

/// The host's namespaces cannot be re-entered from a user namespace; a network and a copy of all mounts of our own can.
pub fn leave_host() -> io::Result<()> {
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS)? };
    Ok(())
}

/// Moves this single-threaded process into a network and an IPC namespace of its own.
pub fn leave_network() -> io::Result<()> {
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWIPC)? };
    Ok(())
}

/// Executes an open program under a name, without arguments and environment; stdin, stdout and stderr stay. Returns
/// only on failure.
pub fn execute_descriptor(program: RawFd, name: &CStr) -> io::Error {
    let arguments = [name.as_ptr(), std::ptr::null()];
    let environment = [std::ptr::null::<libc::c_char>()];
    // SAFETY: takes numbers only; descriptors are marked, not closed.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    // SAFETY: both arrays end with a null pointer, and the name lives as long as the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program,
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// The stack of a child that shares our memory until it executes or exits.
pub struct ChildStack(Box<[u128]>);

impl ChildStack {
    pub fn new(bytes: usize) -> Self {
        Self(vec![0; bytes / size_of::<u128>()].into_boxed_slice())
    }

    /// Stacks grow downwards.
    pub fn top(&mut self) -> *mut c_void {
        self.0.as_mut_ptr_range().end.cast()
    }
}

/// Limits of a sandbox's network in the kernel. TCP memory has one limit for the whole machine, and data in a
/// connection that was not accepted is not charged to any sandbox; nor are closed connections.
pub const NETWORK_LIMITS: [(&str, &str); 4] = [
    ("net.ipv4.tcp_rmem", "4096 65536 262144"),
    ("net.ipv4.tcp_wmem", "4096 16384 262144"),
    ("net.ipv4.tcp_max_tw_buckets", "4096"),
    ("net.core.somaxconn", "512"),
];

/// Limits of each user of a sandbox, besides the total limits of its owner.
const USER_LIMITS: [&CStr; 2] =
    [c"sys/user/max_user_namespaces", c"sys/user/max_inotify_instances"];
const USER_LIMIT_VALUES: [&[u8]; 2] = [b"0", b"64"];

/// A network namespace with only loopback, which is up. The calling thread returns to its namespace.
pub fn network(proc: BorrowedFd<'_>, home: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // Namespaces belong to a thread; `self` would refer to the process's first thread.
    let made = enter_network(proc).and_then(|()| open(proc, "thread-self/ns/net"));
    move_into_link_name_space(home, Some(LinkNameSpaceType::Network))?;
    made
}

/// Moves the calling thread into a network namespace of its own.
pub fn enter_network(proc: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
    for (name, value) in NETWORK_LIMITS {
        let path = format!("sys/{}", name.replace('.', "/"));
        // If settings are not writable, for example in a container, the machine's own apply.
        if let Ok(file) = openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            let _ = rustix::io::write(&file, value.as_bytes());
        }
    }
    loopback_up()
}

/// Opens a namespace by its name below /proc.
pub fn open(proc: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(proc, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn loopback_up() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: an all-zero ifreq is valid: it holds only integers, arrays and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the socket is open and `request` is a live, initialized ifreq.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A user namespace with these ids, kept alive by its descriptor.
pub fn user(proc: BorrowedFd<'_>, stack: &mut ChildStack, ids: IdMap) -> io::Result<OwnedFd> {
    let mut pidfd: RawFd = -1;
    let parent = Parent { pid: std::process::id(), proc: proc.as_raw_fd() };
    let argument = (&raw const parent).cast_mut().cast::<c_void>();
    let flags = libc::CLONE_NEWUSER | libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
    let owner = ids.owner();
    owner.map_or(Ok(()), act_as)?;
    // SAFETY: the child runs `stand_by` on its own stack. It reads `parent` and makes system calls, and we wait
    // at once until it has stopped; both outlive it, because we wait for its exit below.
    let pid = unsafe { libc::clone(stand_by, stack.top(), flags, argument, &raw mut pidfd) };
    let error = io::Error::last_os_error();
    let ourselves = owner.map_or(Ok(()), |_| act_as(Uid::ROOT));
    if pid < 0 {
        return Err(error);
    }
    // SAFETY: on success the kernel stored a new descriptor there, which nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let stopped = wait_stopped(&pidfd).and(ourselves);
    let made = stopped
        .and_then(|()| write_maps(proc, pid, ids))
        .and_then(|()| open(proc, &format!("{pid}/ns/user")));
    // The stack is free again only when the child is gone.
    super::pidfd::kill(&pidfd)?;
    wait_gone(&pidfd)?;
    made
}

/// Changes the effective id of this thread, which keeps all its capabilities: some machines allow only root to create
/// user namespaces.
fn act_as(uid: Uid) -> io::Result<()> {
    set_thread_res_uid(None, uid, None)?;
    if uid.is_root() {
        return Ok(());
    }
    let all = |sets: CapabilitySets| CapabilitySets { effective: sets.permitted, ..sets };
    let kept = capabilities(None).and_then(|sets| set_capabilities(None, all(sets)));
    if kept.is_err() {
        set_thread_res_uid(None, Uid::ROOT, None)?;
    }
    Ok(kept?)
}

/// What the child of [`user`] needs to know.
struct Parent {
    pid: u32,
    proc: RawFd,
}

/// The child of [`user`]: it keeps the namespace alive, and sets the limits of what is counted in it, which is possible
/// only from inside. Then it stops, until it is killed.
extern "C" fn stand_by(parent: *mut c_void) -> libc::c_int {
    // SAFETY: the parent keeps it until we are gone.
    let parent = unsafe { &*parent.cast::<Parent>() };
    // SAFETY: the strings are NUL-terminated, the values as long as is said, and the descriptor is our own copy.
    unsafe {
        // It must not outlive a launcher that is killed before it could kill its child.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid().cast_unsigned() != parent.pid {
            return 0;
        }
        for (path, value) in USER_LIMITS.into_iter().zip(USER_LIMIT_VALUES) {
            let flags = libc::O_WRONLY | libc::O_CLOEXEC;
            let file = libc::openat(parent.proc, path.as_ptr(), flags);
            // If settings are not writable, for example in a container, the owner's limits still apply.
            if file >= 0 {
                libc::write(file, value.as_ptr().cast(), value.len());
                libc::close(file);
            }
        }
        libc::kill(libc::getpid(), libc::SIGSTOP);
    }
    0
}

/// Waits until a child of ours has stopped, or is gone.
fn wait_stopped(pidfd: impl AsFd) -> io::Result<()> {
    wait_for(pidfd, WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
}

fn write_maps(proc: BorrowedFd<'_>, pid: i32, ids: IdMap) -> io::Result<()> {
    let map = ids.line();
    for file in ["uid_map", "gid_map"] {
        let fd =
            openat(proc, format!("{pid}/{file}"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&fd, map.as_bytes())?;
    }
    Ok(())
}

/// Whether a process is the first of a pid namespace below ours; `false` if it is gone.
pub fn is_first_of_its_own(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| tells_of_a_first(&status))
}

/// The same by the process's `status` file: `NSpid:` has its pid in each namespace from ours down.
pub fn tells_of_a_first(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers: Vec<&str> = numbers.unwrap_or_default().split_whitespace().collect();
    matches!(numbers.as_slice(), [_, .., "1"])
}

/// Waits until a child of ours is gone.
pub fn wait_gone(pidfd: impl AsFd) -> io::Result<()> {
    wait_for(pidfd, WaitIdOptions::EXITED)
}

fn wait_for(pidfd: impl AsFd, change: WaitIdOptions) -> io::Result<()> {
    loop {
        match waitid(WaitId::PidFd(pidfd.as_fd()), change) {
            // With SIGCHLD ignored the kernel reaps children by itself and reports that there are none.
            Ok(_) | Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
