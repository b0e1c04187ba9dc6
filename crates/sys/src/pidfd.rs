//! Processes as descriptors: they cannot be confused with a later process with the same pid.

#![expect(unsafe_code, reason = "PIDFD_GET_INFO and SO_PEERPIDFD have no safe wrapper")]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How a process ended, as far as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The kernel will tell once the parent, which is not us, has reaped it.
    Untold,
    /// The kernel is older than 6.15 and the process was not our child.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Self::Untold | Self::Unknown => {
                write!(f, "ended or was killed (only Linux 6.15 and later tell)")
            }
        }
    }
}

pub fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Whether the process has ended; its parent may not have reaped it.
pub fn has_ended(pidfd: impl AsFd) -> bool {
    let mut poll = [PollFd::new(&pidfd, PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    // An error could only be our own mistake; then the process is checked another time.
    matches!(rustix::event::poll(&mut poll, Some(&now)), Ok(count) if count > 0)
}

/// Sends SIGKILL; a process that is gone already is fine.
pub fn kill(pidfd: impl AsFd) -> io::Result<()> {
    match pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the other end of a connected Unix socket was created by this process, and the process is alive.
pub fn is_peer(socket: impl AsFd, process: impl AsFd) -> io::Result<bool> {
    let peer = match peer(&socket) {
        Ok(peer) => number(&peer)?,
        // Before Linux 6.5. The pid may have belonged to another process before.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            Some(rustix::net::sockopt::socket_peercred(&socket)?.pid.as_raw_nonzero().get())
        }
        Err(error) => return Err(error),
    };
    // Two living processes have different pids.
    Ok(peer.is_some() && peer == number(process)?)
}

const SO_PEERPIDFD: libc::c_int = 77;

/// The process that created the other end of a connected Unix socket, or that listens on it.
pub fn of_peer(socket: impl AsFd) -> io::Result<OwnedFd> {
    peer(socket)
}

/// The process that created the other end of a Unix socket.
fn peer(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut pidfd: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: `pidfd` and `len` are writable, and as large as they say.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &mut len,
        )
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// The pid of a process; `None` if it is dead and reaped, or invisible from here.
pub fn number(pidfd: impl AsFd) -> io::Result<Option<i32>> {
    let info = format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd());
    let info = std::fs::read_to_string(info)?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    Ok(number.filter(|number| *number > 0))
}

/// The layout of the kernel's `struct pidfd_info`, first version (64 bytes).
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup_id: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `_IOWR(0xFF, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: libc::c_ulong =
    (3 << 30) | ((size_of::<Info>() as libc::c_ulong) << 16) | (0xFF << 8) | 11;
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// How a process that has ended did so.
pub fn exit(pidfd: impl AsFd) -> Exit {
    let mut info = Info { mask: PIDFD_INFO_EXIT, ..Info::default() };
    // SAFETY: the descriptor is open and `info` is a live struct of the size encoded in the request.
    let result = unsafe { libc::ioctl(pidfd.as_fd().as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    if result != 0 {
        return Exit::Unknown;
    }
    if info.mask & PIDFD_INFO_EXIT == 0 {
        return Exit::Untold;
    }
    match info.exit_code & 0x7f {
        0 => Exit::Code((info.exit_code >> 8) & 0xff),
        signal => Exit::Signal(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn ended(script: &str) -> Exit {
        let mut child = Command::new("sh").args(["-c", script]).spawn().expect("sh runs");
        let pidfd = open(child.id()).expect("the child exists until it is waited for");
        child.wait().expect("the child ends");
        exit(&pidfd)
    }

    #[test]
    fn the_other_end_of_a_socket_is_known_by_who_made_it() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        let me = open(std::process::id()).expect("we are here");
        assert!(is_peer(&ours, &me).expect("the kernel tells"));
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let other = open(child.id()).expect("the child exists until it is waited for");
        assert!(!is_peer(&ours, &other).expect("the kernel tells"));
        child.kill().expect("it is ours");
        child.wait().expect("the child ends");
        assert!(!is_peer(&ours, &other).expect("the kernel tells"));
    }

    #[test]
    fn the_exit_of_a_process_is_told_after_it_is_gone() {
        if ended("exit 3") == Exit::Unknown {
            eprintln!("SKIP the_exit_of_a_process_is_told_after_it_is_gone: kernel before 6.15");
            return;
        }
        assert_eq!(ended("exit 3"), Exit::Code(3));
        assert_eq!(ended("kill -9 $$"), Exit::Signal(9));
    }
}
