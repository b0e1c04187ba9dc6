//! Our own programs, which a guest runs without a file in its sandbox. The guest receives one when it reports that it
//! does not have it, and keeps it for its lifetime.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use guest_proto::{CHUNK_MAX, ToGuest, encode};

use sandkeep_sys::sealed;

/// The process name of the toolbox.
pub const TOOLBOX_NAME: &str = "sandkeep-toolbox";

/// The program for file operations inside.
pub static TOOLBOX: Program = Program::new(TOOLBOX_NAME, sandkeep_embedded::TOOLBOX);

pub struct Program {
    label: &'static str,
    bytes: &'static [u8],
    prepared: OnceLock<Prepared>,
}

struct Prepared {
    name: String,
    /// One for all sandboxes, so that it is in memory once, and accounted to the daemon.
    file: OwnedFd,
}

impl Program {
    const fn new(label: &'static str, bytes: &'static [u8]) -> Self {
        Self { label, bytes, prepared: OnceLock::new() }
    }

    /// The name that guests know it by: different for every build.
    pub fn name(&self) -> io::Result<&str> {
        Ok(&self.prepared()?.name)
    }

    /// The program as an immutable file.
    pub fn file(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.prepared()?.file.as_fd())
    }

    pub fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Its bytes, for a guest that cannot receive a descriptor.
    pub(super) fn frames(&self) -> Vec<u8> {
        let mut frames = Vec::with_capacity(self.bytes.len() + self.bytes.len() / 1024);
        for chunk in self.bytes.chunks(CHUNK_MAX) {
            encode(&ToGuest::Program(chunk.to_vec()), &mut frames);
        }
        frames
    }

    fn prepared(&self) -> io::Result<&Prepared> {
        if let Some(prepared) = self.prepared.get() {
            return Ok(prepared);
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, self.bytes);
        let name = format!("{}-{}", self.label, hex::encode(&digest.as_ref()[..16]));
        let file = sealed::program(self.label, self.bytes)?;
        Ok(self.prepared.get_or_init(|| Prepared { name, file }))
    }
}
