//! Descriptors watched by the async runtime.

#![expect(unsafe_code, reason = "tokio asks its callers to keep a watched descriptor open")]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a descriptor until it is dropped.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `AsyncFd` owns the descriptor, so it stays open for as long as it is watched.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest)? })
}
