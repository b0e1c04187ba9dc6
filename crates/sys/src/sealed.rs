//! Unnamed, immutable programs.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, Mode, SealFlags};

/// An executable memory file with these bytes. All holders of its descriptor share one copy.
pub fn program(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // MFD_EXEC states the intent and is unknown before Linux 6.3.
    let file = rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(name, flags))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    // Otherwise a process that executes it could leave attributes on it for others.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o555))?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}
