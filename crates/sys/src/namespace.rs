//! Namespaces that are made ahead of a launch, by the single-threaded launcher.

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

/// How many ids one sandbox has.
pub const ID_RANGE: u32 = 65_536;
/// The range that all sandboxes have in common whose volumes lie where ids cannot be mapped: there the files
/// themselves hold these ids, so it is the same for every daemon and for good. It is the last one that any
/// sandbox can have, and given to none alone.
pub const SHARED_ID_BASE: u32 = (1 << 31) - ID_RANGE;

/// The id that commands have inside.
pub const USER_ID: u32 = 1000;

/// How the ids of a user namespace lie in those around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMap {
    inside: u32,
    outside: u32,
    count: u32,
}

impl IdMap {
    /// All ids of a sandbox, root being `base`.
    pub fn range(base: u32) -> Self {
        Self { inside: 0, outside: base, count: ID_RANGE }
    }

    /// One id alone, which is the user's inside.
    pub const fn single(outside: u32) -> Self {
        Self { inside: USER_ID, outside, count: 1 }
    }

    /// Who is to own the namespace, and be charged for all that is counted in it: the kernel passes the counts
    /// of a user namespace on to whoever made it. Without root that can be nobody else.
    fn owner(self) -> Option<Uid> {
        let is_ours = self.count == 1 || !rustix::process::geteuid().is_root();
        (!is_ours).then(|| Uid::from_raw(self.outside))
    }

    fn line(self) -> String {
        format!("{} {} {}\n", self.inside, self.outside, self.count)
    }
}

/// Moves this single-threaded process, of a person who is not root, into a user namespace of its
/// own: there it has every capability, and one id.
pub fn enter_user() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER)? };
    // The kernel wants it so: a group that takes something away from its members cannot be left.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", IdMap::single(uid).line())?;
    std::fs::write("/proc/self/gid_map", IdMap::single(gid).line())
}

/// What belongs to the host cannot be entered again from a user namespace: a network and a copy of
/// all mounts of our own can.
pub fn leave_host() -> io::Result<()> {
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS)? };
    Ok(())
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

/// What a sandbox's network may hold in the kernel. Memory of TCP has one bound for the whole machine, and what
/// waits in a connection that nobody has accepted is counted towards no sandbox; nor are closed connections.
pub const NETWORK_LIMITS: [(&str, &str); 4] = [
    ("net.ipv4.tcp_rmem", "4096 65536 262144"),
    ("net.ipv4.tcp_wmem", "4096 16384 262144"),
    ("net.ipv4.tcp_max_tw_buckets", "4096"),
    ("net.core.somaxconn", "512"),
];

/// What each user of a sandbox may hold besides what its owner may hold in all.
const USER_LIMITS: [&CStr; 2] =
    [c"sys/user/max_user_namespaces", c"sys/user/max_inotify_instances"];
const USER_LIMIT_VALUES: [&[u8]; 2] = [b"0", b"64"];

/// A network namespace with nothing but loopback, which is up. The calling thread comes back to
/// the namespace it was in.
pub fn network(proc: BorrowedFd<'_>, home: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // Namespaces are a thread's own; `self` would be that of the process's first thread.
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
        // Where settings cannot be written, in a container for one, the machine's own hold.
        if let Ok(file) = openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            let _ = rustix::io::write(&file, value.as_bytes());
        }
    }
    loopback_up()
}

/// Opens a namespace by its name beneath /proc.
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

/// A user namespace with these ids, kept by its descriptor.
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

/// Changes the effective id of this thread, which keeps all its capabilities: some machines let nobody else make
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

/// What the child of [`user`] has to know.
struct Parent {
    pid: u32,
    proc: RawFd,
}

/// The child of [`user`]: it exists so that the namespace does, and limits what is counted in it, which can be done
/// only from inside. It stops when it has, until it is killed.
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
            // Where settings cannot be written, in a container for one, the owner's limits still hold.
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

/// Whether a process is the first of a pid namespace beneath ours; not if it is gone.
pub fn is_first_of_its_own(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| tells_of_a_first(&status))
}

/// The same by the process's `status` file: `NSpid:` has its number in each namespace from ours down.
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
            // With SIGCHLD ignored the kernel reaps by itself and then answers that there is none.
            Ok(_) | Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
