//! Raw system calls: a refusal by a library proves nothing about the kernel.

#![expect(unsafe_code, reason = "raw system calls are what this program is about")]

#[cfg(target_arch = "x86_64")]
mod abi;
mod errno;

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::c_long;

#[cfg(target_arch = "x86_64")]
pub use abi::{i386_call, x32_call};
pub use errno::Errno;

/// An argument of a system call. Pointers always refer to memory that is borrowed for the call.
pub enum Arg<'a> {
    Number(i64),
    Text(&'a CStr),
    Bytes(&'a [u8]),
    /// A buffer for the kernel to write to. Every call with one writes less than [`ROOM`].
    Room(&'a mut [u8; ROOM]),
}

pub const ROOM: usize = 4096;

impl Arg<'_> {
    fn value(&mut self) -> i64 {
        let address = match self {
            Self::Number(number) => return *number,
            Self::Text(text) => text.as_ptr().addr(),
            Self::Bytes(bytes) => bytes.as_ptr().addr(),
            Self::Room(room) => room.as_mut_ptr().expose_provenance(),
        };
        address as i64
    }
}

/// Makes a system call that neither maps memory nor returns twice.
pub fn call<const N: usize>(number: c_long, mut arguments: [Arg<'_>; N]) -> Result<i64, Errno> {
    let mut raw = [0i64; 6];
    for (slot, argument) in raw.iter_mut().zip(&mut arguments) {
        *slot = argument.value();
    }
    let [a, b, c, d, e, f] = raw;
    // SAFETY: each pointer is to memory that `arguments` borrows until after the call, with room for all that the
    // kernel writes there; the calls of this program change nothing else of this process's memory.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 { Err(Errno::last()) } else { Ok(result) }
}

/// A child with the given flags that exits at once; what counts is whether it could be created.
pub fn clone_with(flags: i32) -> Result<(), Errno> {
    // SAFETY: without CLONE_VM the child has its own copy of everything, like a fork of this single thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
    end_child(pid)
}

/// The same by clone3, which hides its flags behind a pointer.
pub fn clone3_with(flags: i32) -> Result<(), Errno> {
    let mut arguments = [0u64; 8];
    arguments[0] = flags as u64;
    arguments[4] = libc::SIGCHLD as u64;
    // SAFETY: `arguments` has the layout of the first version of `struct clone_args`; see `clone_with`.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) };
    end_child(pid)
}

fn end_child(pid: c_long) -> Result<(), Errno> {
    match pid {
        -1 => Err(Errno::last()),
        // SAFETY: ends the child without running anything of the parent's.
        0 => unsafe { libc::_exit(0) },
        pid => {
            let pid = i32::try_from(pid).unwrap_or(-1);
            // SAFETY: a null status is allowed.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            Ok(())
        }
    }
}

/// A child that was not reaped yet.
pub struct Child(libc::pid_t);

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Exited,
    Killed(i32),
}

/// Runs `work` in a child, which then exits without running anything else.
pub fn fork(work: impl FnOnce()) -> Result<Child, Errno> {
    // SAFETY: this program has one thread, so the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::last()),
        0 => {
            work();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) }
        }
        pid => Ok(Child(pid)),
    }
}

impl Child {
    pub fn wait(self) -> Ended {
        let mut status = 0;
        // SAFETY: the pid is our child's, which stays ours until it is waited for.
        unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        if libc::WIFSIGNALED(status) {
            Ended::Killed(libc::WTERMSIG(status))
        } else {
            Ended::Exited
        }
    }

    pub fn kill(self) {
        // SAFETY: as for `wait`.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.wait();
    }
}

pub fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: there is room for both ends.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Errno::last());
    }
    // SAFETY: both were just made and nobody else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Whether data, or the end, can be read within the time.
pub fn readable_within(fd: &impl AsRawFd, wait: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let wait = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one live entry, as is said.
    unsafe { libc::poll(&raw mut poll, 1, wait) == 1 }
}

/// Those below the usual descriptor limit.
pub fn open_descriptors() -> Vec<RawFd> {
    // SAFETY: only asks for a flag of a number.
    (0..1024).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect()
}

pub fn seals(fd: &impl AsRawFd) -> i32 {
    // SAFETY: only asks for the seals of a descriptor.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) }
}

pub fn effective_uid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() }
}

/// Waits until a signal.
pub fn pause() {
    // SAFETY: takes nothing.
    unsafe { libc::pause() };
}

/// Anonymous memory, with every page written to; `None` when the kernel refuses more. It is never released.
pub fn take_memory(bytes: usize) -> Option<()> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping that overlaps nothing, of which each page is written to within its length.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return None;
        }
        for offset in (0..bytes).step_by(4096) {
            start.cast::<u8>().add(offset).write_volatile(1);
        }
    }
    Some(())
}

/// The kernel's release and version, from uname.
pub fn kernel() -> String {
    // SAFETY: all zeros is a valid utsname, and the call fills it in.
    let names = unsafe {
        let mut names = std::mem::zeroed::<libc::utsname>();
        libc::uname(&raw mut names);
        names
    };
    let text = |field: &[libc::c_char]| {
        let bytes: Vec<u8> =
            field.iter().map(|c| c.cast_unsigned()).take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    format!("{} {}", text(&names.release), text(&names.version))
}
