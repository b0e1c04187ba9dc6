//! A process that keeps a copy of itself running.

#![expect(unsafe_code, reason = "fork has no safe wrapper")]

use std::io;

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

/// Which of the two processes returned.
#[derive(Debug)]
pub enum Forked {
    Parent { child: Pid },
    Child,
}

/// Copies this process, which must have one thread: others would be missing in the copy, together with whatever they
/// hold locked. The child dies with its parent.
pub fn fork() -> io::Result<Forked> {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    if threads.is_ok_and(|threads| threads > 1) {
        return Err(io::Error::other("a process with several threads must not fork"));
    }
    let parent = rustix::process::getpid();
    // SAFETY: the only thread of this process calls it (its callers are processes of ours with one purpose, and where
    // there is a /proc it was checked), so the copy is complete.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // It may have died before that.
            if rustix::process::getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(Forked::Child)
        }
        child => {
            let child = Pid::from_raw(child).ok_or(io::ErrorKind::Other)?;
            Ok(Forked::Parent { child })
        }
    }
}

/// Waits until a child has ended.
pub fn wait(child: Pid) -> io::Result<WaitStatus> {
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
