//! Thin, safe wrappers around the system calls the guest makes. Every descriptor made here is
//! close-on-exec: no child inherits one that it is not given.

#![expect(unsafe_code, reason = "system calls; each wrapper is safe to call")]

mod private;
mod setup;
mod socket;
mod tcp;
mod tty;

use std::ffi::{CString, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use libc::pid_t;

pub use private::*;
pub use setup::*;
pub use socket::*;
pub use tcp::*;
pub use tty::*;

/// The result of a system call that answers -1 and errno on failure.
fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Takes a descriptor that a system call has just made.
fn owned(result: c_int) -> io::Result<OwnedFd> {
    let fd: RawFd = check(result)?;
    // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A pipe: the end to read from, the end to write to. Both block.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: `fds` has room for two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: the kernel has just given us both.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Makes one end of a pipe non-blocking; the other end is not affected.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: changes flags of an open descriptor.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }).map(drop)
}

/// Opens a file by its name in a directory.
pub fn open_in(directory: &OwnedFd, name: &str, flags: c_int) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    // SAFETY: the name is NUL-terminated.
    owned(unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC) })
}

pub fn open_directory_in(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    open_in(directory, name, libc::O_RDONLY | libc::O_DIRECTORY)
}

pub fn make_directory(parent: &OwnedFd, name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the name is NUL-terminated.
    check(unsafe { libc::mkdirat(parent.as_raw_fd(), name.as_ptr(), 0o700) }).map(drop)
}

pub fn remove_directory(parent: &OwnedFd, name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the name is NUL-terminated.
    check(unsafe { libc::unlinkat(parent.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) })
        .map(drop)
}

pub fn open_null() -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOCTTY;
    // SAFETY: the path is a NUL-terminated string.
    owned(unsafe { libc::open(c"/dev/null".as_ptr(), flags) })
}

/// Where we find our own descriptors if their place in /proc is covered.
static OWN_DESCRIPTORS: OnceLock<OwnedFd> = OnceLock::new();

fn remember_own_descriptors() -> io::Result<()> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path is NUL-terminated.
    let directory = owned(unsafe { libc::open(c"/proc/self/fd".as_ptr(), flags) })?;
    OWN_DESCRIPTORS.set(directory).map_err(|_| io::ErrorKind::AlreadyExists.into())
}

/// Opens a file a second time, for reading.
pub fn open_again(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    open_again_as(fd, libc::O_RDONLY)
}

fn open_again_as(fd: BorrowedFd<'_>, flags: i32) -> io::Result<OwnedFd> {
    let number = fd.as_raw_fd();
    if let Some(directory) = OWN_DESCRIPTORS.get() {
        return open_in(directory, &number.to_string(), flags);
    }
    let path = CString::new(format!("/proc/self/fd/{number}"))?;
    // SAFETY: the path is NUL-terminated.
    owned(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })
}

pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is readable for its length.
    check_len(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })
}

pub fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `buffer` is writable for its length.
    check_len(unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) })
}

/// Reads at an offset, for files that are made anew by each read from the start.
pub fn read_at(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: usize) -> io::Result<usize> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: `buffer` is writable for its length.
    check_len(unsafe {
        libc::pread(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), offset)
    })
}

/// Reads up to `max` bytes and appends them; `Ok(0)` is the end.
pub fn read_append(fd: BorrowedFd<'_>, buffer: &mut Vec<u8>, max: usize) -> io::Result<usize> {
    buffer.reserve(max);
    let spare = buffer.spare_capacity_mut().as_mut_ptr().cast::<c_void>();
    // SAFETY: the vector has room for at least `max` bytes behind its length.
    let count = check_len(unsafe { libc::read(fd.as_raw_fd(), spare, max) })?;
    // SAFETY: the kernel has just written `count` bytes there.
    unsafe { buffer.set_len(buffer.len() + count) };
    Ok(count)
}

/// How many bytes wait in a pipe.
pub fn pending(fd: BorrowedFd<'_>) -> usize {
    let mut count: c_int = 0;
    // SAFETY: FIONREAD writes one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD as _, &mut count) };
    if result == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// What became of a pipe that is drained to nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discarded {
    StillOpen,
    Ended,
}

/// Throws away what waits in a pipe, at most some 64 KiB at a time so that a flood holds up nobody.
pub fn discard(fd: BorrowedFd<'_>) -> Discarded {
    let mut nowhere = [0u8; 4096];
    for _ in 0..16 {
        // SAFETY: `nowhere` is writable for its length.
        let count = check_len(unsafe {
            libc::read(fd.as_raw_fd(), nowhere.as_mut_ptr().cast(), nowhere.len())
        });
        match count {
            Ok(0) => return Discarded::Ended,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(_) => return Discarded::Ended,
        }
    }
    Discarded::StillOpen
}

pub fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

pub fn epoll_control(
    epoll: BorrowedFd<'_>,
    operation: c_int,
    fd: BorrowedFd<'_>,
    events: u32,
    data: u64,
) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: `event` is valid for the call.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) })
        .map(drop)
}

pub fn epoll_wait(
    epoll: BorrowedFd<'_>,
    events: &mut [libc::epoll_event],
    timeout_ms: c_int,
) -> io::Result<usize> {
    let max = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    // SAFETY: `events` has room for `max` events.
    let count =
        unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), max, timeout_ms) };
    match check(count) {
        Ok(count) => Ok(count.unsigned_abs() as usize),
        // A debugger or the freezer may interrupt; there is just nothing yet.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// How a process ended, from its wait status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    fn from_status(status: c_int) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Code(libc::WEXITSTATUS(status))
        }
    }
}

/// What a look for dead children found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    Child(pid_t, Exit),
    Stopped(pid_t),
    /// There are children, all alive.
    NoneDead,
    NoChildren,
}

/// Whether children that were stopped are of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stops {
    Told,
    NotTold,
}

/// Reaps one dead child, whoever's it was, without waiting.
pub fn reap(stops: Stops) -> Reaped {
    let mut status = 0;
    let flags = match stops {
        Stops::Told => libc::WNOHANG | libc::WUNTRACED,
        Stops::NotTold => libc::WNOHANG,
    };
    // SAFETY: `status` is writable.
    match check(unsafe { libc::waitpid(-1, &mut status, flags) }) {
        Ok(0) => Reaped::NoneDead,
        Ok(pid) if libc::WIFSTOPPED(status) => Reaped::Stopped(pid),
        Ok(pid) => Reaped::Child(pid, Exit::from_status(status)),
        Err(_) => Reaped::NoChildren,
    }
}

/// A child that is dead and not reaped: how it ended, as `CLD_…` and the code or signal.
pub struct Dead {
    pub pid: pid_t,
    pub kind: c_int,
    pub status: c_int,
}

/// Waits for a child to die; `None` if there is none.
pub fn wait_for_dead() -> Option<Dead> {
    loop {
        // SAFETY: all-zero is a valid siginfo_t.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: `info` is writable; when the call succeeds the kernel has filled it for a child.
        let (result, pid, status) = unsafe {
            let result = libc::waitid(libc::P_ALL, 0, &mut info, flags);
            (check(result), info.si_pid(), info.si_status())
        };
        match result {
            Ok(_) => return Some(Dead { pid, kind: info.si_code, status }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Two connected sockets that keep messages apart and block.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `fds` has room for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: the kernel has just given us both.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Whether something came to be read within the time.
pub fn wait_readable(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout_ms = c_int::try_from(patience.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: one valid entry. All signals are blocked, so nothing interrupts it.
    unsafe { libc::poll(&mut poll, 1, timeout_ms) == 1 }
}

/// Closes every descriptor but one.
pub fn close_all_but(fd: RawFd) {
    let fd = fd.unsigned_abs();
    // SAFETY: whoever calls this uses no other descriptor any more.
    unsafe {
        if fd > 0 {
            libc::syscall(libc::SYS_close_range, 0, fd - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, fd + 1, u32::MAX, 0);
    }
}

/// How long a dying child is waited for. It takes microseconds; one that takes longer is reaped with
/// the orphans when its SIGCHLD comes.
const REAP_PATIENCE: Duration = Duration::from_millis(100);
const REAP_PAUSE: Duration = Duration::from_micros(10);

/// Reaps a child that is dying.
pub fn reap_this(pid: pid_t) {
    let deadline = Instant::now() + REAP_PATIENCE;
    let mut status = 0;
    // SAFETY: `status` is writable.
    while unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == 0
        && Instant::now() < deadline
    {
        std::thread::sleep(REAP_PAUSE);
    }
}

/// Whether a child is dead; it is not reaped.
pub fn is_dead(pid: pid_t) -> bool {
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is writable; the kernel leaves the pid in it 0 if the child lives.
    unsafe {
        libc::waitid(libc::P_PID, pid.cast_unsigned(), &mut info, flags) == 0
            && info.si_pid() == pid
    }
}

/// Waits until a word is no longer `value`, somebody wakes us, or the time is over; which of these
/// it was, the caller sees by looking again.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Duration) {
    // SAFETY: all-zero is a valid timespec.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    time.tv_sec = timeout.as_secs() as _;
    time.tv_nsec = timeout.subsec_nanos() as _;
    // SAFETY: the kernel only reads the word and the time.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time)
    };
}

/// Sends a signal to a process, or to a group or all as in kill(2).
pub fn kill(pid: pid_t, signal: c_int) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

pub fn pid() -> pid_t {
    // SAFETY: cannot fail.
    unsafe { libc::getpid() }
}

pub fn effective_uid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() }
}

/// A signal that came, and from where.
pub struct Signal {
    pub number: u32,
    pub sender: Sender,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A process of this sandbox, or the kernel on behalf of one.
    Inside,
    /// The host: its processes have no number in our namespace. Whoever queues a signal with a
    /// number of his own choice cannot also say that kill(2) sent it.
    Outside,
}

/// The signals that have come since the last look.
pub fn read_signals(signals: &OwnedFd) -> Vec<Signal> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    const NUMBER: usize = std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo);
    const CODE: usize = std::mem::offset_of!(libc::signalfd_siginfo, ssi_code);
    const PID: usize = std::mem::offset_of!(libc::signalfd_siginfo, ssi_pid);
    const BY_KILL: u32 = libc::SI_USER.cast_unsigned();
    let mut buffer = [0u8; SIZE * 4];
    let fd = signals.as_fd().as_raw_fd();
    // SAFETY: `buffer` is writable for its length.
    let count = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    let count = usize::try_from(count).unwrap_or(0);
    let field = |info: &[u8], at: usize| info[at..].first_chunk().copied().map(u32::from_ne_bytes);
    buffer[..count]
        .chunks_exact(SIZE)
        .filter_map(|info| {
            let sender = match (field(info, PID)?, field(info, CODE)?) {
                (0, BY_KILL) => Sender::Outside,
                _ => Sender::Inside,
            };
            Some(Signal { number: field(info, NUMBER)?, sender })
        })
        .collect()
}
