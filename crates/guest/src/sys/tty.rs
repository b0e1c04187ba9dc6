//! Pseudo-terminals.

use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use guest_proto::TerminalSize;

use super::{check, effective_uid, hide_from_ptrace, owned};

/// A new terminal: the non-blocking end that we keep, and the line for the command. Its file belongs to `owner`, so
/// that the command can open it by name.
pub fn open_terminal(owner: u32) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // The file belongs to the user who opens its other end. Becoming that user for a moment takes less than the right
    // to change owners.
    let master = as_owner_of_files(owner, || {
        // SAFETY: the path is a NUL-terminated string.
        owned(unsafe { libc::open(c"/dev/ptmx".as_ptr(), flags | libc::O_NONBLOCK) })
    })?;
    let line = open_line(master.as_fd(), flags)?;
    erase_whole_characters(line.as_fd());
    Ok((master, line))
}

fn open_line(master: BorrowedFd<'_>, flags: c_int) -> io::Result<OwnedFd> {
    let locked: c_int = 0;
    // SAFETY: the first reads one int; the second takes flags and makes a descriptor.
    let line = owned(unsafe {
        check(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK as _, &raw const locked))?;
        libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER as _, flags)
    });
    match line {
        // gVisor's kernel supports terminals only by name.
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
            open_line_by_name(master, flags)
        }
        line => line,
    }
}

fn open_line_by_name(master: BorrowedFd<'_>, flags: c_int) -> io::Result<OwnedFd> {
    let mut number: c_int = 0;
    // SAFETY: writes one int.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN as _, &raw mut number) })?;
    let path = CString::new(format!("/dev/pts/{number}"))?;
    // SAFETY: the path is NUL-terminated.
    owned(unsafe { libc::open(path.as_ptr(), flags) })
}

/// Creates something that then belongs to a user.
pub fn as_owner_of_files<T>(owner: u32, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    const NOBODY: u32 = u32::MAX;
    // SAFETY: no memory is involved. If it may not be changed nothing happens, and an invalid id changes
    // nothing and tells what is.
    let (before, now) = unsafe { (libc::setfsuid(owner), libc::setfsuid(NOBODY)) };
    // gVisor's kernel does not support it, but has no other threads that an effective id could affect.
    let by_effective_id = now.cast_unsigned() != owner && effective_uid() == 0;
    if by_effective_id {
        set_effective_uid(owner)?;
    }
    let made = make();
    if by_effective_id {
        set_effective_uid(0)?;
    }
    // SAFETY: as above.
    unsafe { libc::setfsuid(before.cast_unsigned()) };
    // The change has made us as traceable as the host's `fs.suid_dumpable` says.
    hide_from_ptrace()?;
    made
}

fn set_effective_uid(uid: u32) -> io::Result<()> {
    const KEEP: u32 = u32::MAX;
    // SAFETY: no memory is involved.
    check(unsafe { libc::syscall(libc::SYS_setresuid, KEEP, uid, KEEP) as c_int }).map(drop)
}

/// In a line that is edited, a backspace erases a character and not one byte of it. Without it the terminal still
/// works, so a failure does not matter.
fn erase_whole_characters(line: BorrowedFd<'_>) {
    if let Ok(mut settings) = settings(line) {
        settings.c_iflag |= libc::IUTF8;
        // SAFETY: `settings` is valid and was filled by the kernel.
        unsafe { libc::tcsetattr(line.as_raw_fd(), libc::TCSANOW, &settings) };
    }
}

fn settings(terminal: BorrowedFd<'_>) -> io::Result<libc::termios> {
    // SAFETY: all-zero is a valid termios.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `settings` is writable.
    check(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut settings) })?;
    Ok(settings)
}

/// The end-of-file key; `None` while the command reads keys and not lines.
pub fn end_of_file_key(terminal: BorrowedFd<'_>) -> Option<u8> {
    let settings = settings(terminal).ok()?;
    let key = settings.c_cc[libc::VEOF];
    (settings.c_lflag & libc::ICANON != 0 && key != 0).then_some(key)
}

/// The signal of a key, while the command has signal keys enabled.
pub fn signal_of_key(terminal: BorrowedFd<'_>, key: u8) -> Option<c_int> {
    let settings = settings(terminal).ok()?;
    let keys =
        [(libc::VINTR, libc::SIGINT), (libc::VQUIT, libc::SIGQUIT), (libc::VSUSP, libc::SIGTSTP)];
    let asked = settings.c_lflag & libc::ISIG != 0 && key != 0;
    keys.into_iter().find(|(at, _)| asked && settings.c_cc[*at] == key).map(|(_, signal)| signal)
}

/// Sets the terminal's size; if that changes it, the command gets SIGWINCH.
pub fn resize(terminal: BorrowedFd<'_>, size: TerminalSize) -> io::Result<()> {
    let size = libc::winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: reads one winsize.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ as _, &raw const size) })
        .map(drop)
}
