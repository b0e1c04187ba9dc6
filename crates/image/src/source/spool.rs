//! Temporary storage for input that can be read only once: unnamed files, which disappear with their last descriptor,
//! and with the machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use sandkeep_core::ledger::Reservation;
use sandkeep_core::limits;
use sandkeep_tree::untrusted;

/// Whether an archive that turned out to hold so many bytes may be decoded further.
type MayDecode = Box<dyn Fn(u64) -> io::Result<()> + Send + Sync>;

/// A directory for such files of one owner, who has taken `space` for them.
pub struct SpoolDir {
    directory: OwnedFd,
    space: Arc<Reservation>,
    may_decode: MayDecode,
}

impl SpoolDir {
    pub fn new(directory: OwnedFd, space: Arc<Reservation>) -> Self {
        Self { directory, space, may_decode: Box::new(|_| Ok(())) }
    }

    /// Asks now and then while an archive is decoded only to see what it is: a small file can hold very much.
    pub fn decoding_while(
        self,
        may_decode: impl Fn(u64) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { may_decode: Box::new(may_decode), ..self }
    }

    /// So many bytes of an archive were decoded.
    pub(super) fn decoded(&self, bytes: u64) -> io::Result<()> {
        (self.may_decode)(bytes)
    }

    /// Reserves space for bytes that are about to be written.
    pub fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.space.take(bytes).map_err(|over| io::Error::new(io::ErrorKind::StorageFull, over))
    }

    /// A new file.
    pub fn file(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        match openat(&self.directory, c".", flags | OFlags::TMPFILE, mode) {
            // Not every file system supports this; otherwise it has a name for a moment.
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                let name = untrusted::unused_name();
                let file =
                    openat(&self.directory, &name, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
                unlinkat(&self.directory, &name, AtFlags::empty())?;
                Ok(file.into())
            }
            made => Ok(made?.into()),
        }
    }

    /// Writes all data of a reader. Blocks.
    pub fn take(&self, reader: impl Read) -> io::Result<File> {
        let mut file = self.file()?;
        let max = limits::IMAGE_ARCHIVE_MAX_BYTES;
        let mut reader = reader.take(max + 1);
        let (mut copied, mut chunk) = (0, vec![0; limits::LAYER_COPY_BYTES]);
        loop {
            let read = match reader.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if read == 0 {
                return Ok(file);
            }
            copied += read as u64;
            if copied > max {
                return Err(io::Error::other(format!("it is larger than {max} bytes")));
            }
            self.reserve(read as u64)?;
            file.write_all(&chunk[..read])?;
        }
    }
}
