//! Where what can be read only once is put down: files without a name, which are gone with the last who has
//! them open, and with the machine.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use sandkeep_core::limits;
use sandkeep_tree::untrusted;

/// A directory for such files.
#[derive(Debug)]
pub struct SpoolDir(OwnedFd);

impl SpoolDir {
    pub fn new(directory: OwnedFd) -> Self {
        Self(directory)
    }

    /// A new file.
    pub fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        match openat(&self.0, c".", flags | OFlags::TMPFILE, mode) {
            // Not every filesystem can; there it has a name for a moment.
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                let name = untrusted::unused_name();
                let file = openat(&self.0, &name, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
                unlinkat(&self.0, &name, AtFlags::empty())?;
                Ok(file.into())
            }
            made => Ok(made?.into()),
        }
    }

    /// Puts down all that a reader gives. Blocks.
    pub fn take(&self, reader: impl Read) -> io::Result<File> {
        let mut file = self.file()?;
        let max = limits::IMAGE_ARCHIVE_MAX_BYTES;
        let copied = io::copy(&mut reader.take(max + 1), &mut file)?;
        match copied > max {
            true => Err(io::Error::other(format!("it is larger than {max} bytes"))),
            false => Ok(file),
        }
    }
}
