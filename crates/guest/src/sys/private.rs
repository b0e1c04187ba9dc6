//! Descriptors that only a shell and the guest have.

use std::fs::{File, Permissions};
use std::io::{self, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, PermissionsExt};

use super::{as_owner_of_files, check, open_again_as, owned, pipe};

/// An unnamed file that can be opened again by any user who has it open.
pub fn memory_file() -> io::Result<File> {
    // SAFETY: the name is NUL-terminated.
    owned(unsafe { libc::memfd_create(c"command".as_ptr(), libc::MFD_CLOEXEC) }).map(File::from)
}

/// States the intent; unknown before Linux 6.3.
const MFD_EXEC: std::ffi::c_uint = 0x10;

/// An unnamed file to write a program into.
pub fn program_file() -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is NUL-terminated.
    let made = owned(unsafe { libc::memfd_create(c"program".as_ptr(), flags | MFD_EXEC) });
    // SAFETY: as above.
    let made = made.or_else(|_| owned(unsafe { libc::memfd_create(c"program".as_ptr(), flags) }));
    let file = File::from(made?);
    // Executable by everybody, changeable by nobody. gVisor's kernel does not allow this change.
    let _ = file.set_permissions(Permissions::from_mode(0o555));
    Ok(file)
}

/// A complete program that can no longer be changed, positioned at its start.
pub fn seal_program(mut file: File) -> io::Result<OwnedFd> {
    file.rewind()?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no memory is involved.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file.into())
}

/// Replaces the content of the file.
pub fn replace_content(file: &File, content: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(content, 0)
}

/// A copy whose number is at least `lowest`.
pub fn copy_above(fd: BorrowedFd<'_>, lowest: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: makes a new descriptor of an open one.
    owned(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) })
}

/// A pipe that every user who has it can open again through /proc, or at least this one: gVisor's kernel does not allow
/// changing a pipe's permissions.
pub fn pipe_to_reopen(user: u32) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe()?;
    let read = File::from(read);
    match read.set_permissions(Permissions::from_mode(0o666)) {
        Ok(()) => Ok((read.into(), write)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            as_owner_of_files(user, pipe)
        }
        Err(error) => Err(error),
    }
}

/// Opens one of our pipes again, for reading; the new end is non-blocking.
pub fn reopen_to_read(pipe: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    open_again_as(pipe, libc::O_RDONLY | libc::O_NONBLOCK)
}

/// Opens one of our pipes again, for writing; the new end is non-blocking.
pub fn reopen_to_write(pipe: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    open_again_as(pipe, libc::O_WRONLY | libc::O_NONBLOCK)
}

/// Whether a pipe has readers left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    Some,
    None,
}

pub fn readers(pipe: &OwnedFd) -> Readers {
    let mut poll = libc::pollfd { fd: pipe.as_fd().as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one valid entry; it does not wait.
    unsafe { libc::poll(&mut poll, 1, 0) };
    if poll.revents & libc::POLLERR != 0 { Readers::None } else { Readers::Some }
}
