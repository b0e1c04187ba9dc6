//! Restores files: from an archive of the differences, with two special kinds of entries. [`GONE`] means that the name
//! did not exist; [`METADATA`] that only owner, mode and attributes differed, so that the file's content stays
//! untouched, and open where it is open.
//!
//! Paths are handled as in any archive: below the directory, and never through a symbolic link. Everything is
//! idempotent.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use tar::{Archive, EntryType};

use super::place::{Stamp, UnpackTarget};
use super::{Unpacking, damaged, drain, relative};
use crate::answer::{Failure, Unpacked};
use crate::files::remove_tree::remove_tree;
use crate::request::Ownership;
use crate::wire::Input;

/// The type of an entry whose name is to be removed.
pub const GONE: u8 = b'W';
/// The type of an entry with only a file's metadata.
pub const METADATA: u8 = b'M';

/// Prefix of a file's attributes in an archive.
const ATTRIBUTE: &str = "SCHILY.xattr.";
/// The kernel's limit for a list of names.
const NAMES_MAX_BYTES: usize = 64 * 1024;

type Attributes = Vec<(CString, Vec<u8>)>;

/// Restores the sent files in the whole sandbox.
pub fn restore_all(input: &mut Input) -> Result<Unpacked, Failure> {
    let restored = restore(Path::new("/"), &mut *input)?;
    drain(input)?;
    Ok(restored)
}

/// Restores an archive's files in a directory, as far as the caller's rights allow.
pub fn restore(root: &Path, archive: impl Read) -> Result<Unpacked, Failure> {
    let mut unpacking = Unpacking {
        place: UnpackTarget::open(root)?,
        ownership: Ownership::Keep,
        directories: Vec::new(),
        unpacked: Unpacked { entries: 0, bytes: 0 },
    };
    let mut archive = Archive::new(archive);
    for entry in archive.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let path = entry.path().map_err(damaged)?.into_owned();
        let name = relative(&path)?;
        let kind = entry.header().entry_type();
        let attributes = attributes(&mut entry).map_err(damaged)?;
        match kind.as_byte() {
            GONE => unpacking.place.remove(&name)?,
            METADATA => {
                let stamp = unpacking.stamp(entry.header()).map_err(damaged)?;
                unpacking.place.describe(&name, &stamp, &attributes)?;
            }
            _ if kind == EntryType::Fifo => {
                let stamp = unpacking.stamp(entry.header()).map_err(damaged)?;
                unpacking.place.fifo(&name, &stamp)?;
            }
            _ => {
                unpacking.take(entry)?;
                if matches!(kind, EntryType::Regular | EntryType::Directory) {
                    unpacking.place.set_attributes(&name, &attributes)?;
                }
            }
        }
    }
    unpacking.finish()
}

fn attributes<R: Read>(entry: &mut tar::Entry<'_, R>) -> std::io::Result<Attributes> {
    let mut found = Vec::new();
    let Some(records) = entry.pax_extensions()? else { return Ok(found) };
    for record in records {
        let record = record?;
        let Some(name) = record.key().ok().and_then(|key| key.strip_prefix(ATTRIBUTE)) else {
            continue;
        };
        if let Ok(name) = CString::new(name) {
            found.push((name, record.value_bytes().to_vec()));
        }
    }
    Ok(found)
}

impl UnpackTarget {
    /// Removes an entry, with its content.
    fn remove(&self, name: &Path) -> Result<(), Failure> {
        let failure = self.failure(name);
        let Some((above, last)) = self.existing(name)? else { return Ok(()) };
        match rustix::fs::unlinkat(&above, &last, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => remove_tree(&above, &last).map_err(failure),
            Err(errno) => Err(failure(errno)),
        }
    }

    /// Sets everything but the content. A missing entry is skipped.
    fn describe(&self, name: &Path, stamp: &Stamp, attributes: &Attributes) -> Result<(), Failure> {
        let failure = self.failure(name);
        let Some((above, last)) = self.existing(name)? else { return Ok(()) };
        let found = match rustix::fs::statat(&above, &last, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(failure(errno)),
        };
        if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
            return stamp.put_on_link(above.as_fd(), &last).map_err(failure);
        }
        let file = open(&above, &last).map_err(&failure)?;
        set(&file, attributes).map_err(&failure)?;
        stamp.put_on(&file).map_err(failure)
    }

    fn set_attributes(&self, name: &Path, attributes: &Attributes) -> Result<(), Failure> {
        let failure = self.failure(name);
        match self.existing(name)? {
            Some((above, last)) => {
                let file = open(&above, &last).map_err(&failure)?;
                set(&file, attributes).map_err(failure)
            }
            None => Ok(()),
        }
    }

    fn fifo(&self, name: &Path, stamp: &Stamp) -> Result<(), Failure> {
        let failure = self.failure(name);
        self.remove(name)?;
        let (above, last) = self.above(name)?;
        rustix::fs::mknodat(&above, &last, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .map_err(&failure)?;
        stamp.put_on(open(&above, &last).map_err(&failure)?).map_err(failure)
    }

    /// The parent directory of an entry; `None` if it does not exist.
    fn existing(&self, name: &Path) -> Result<Option<(OwnedFd, std::ffi::OsString)>, Failure> {
        let Some(last) = name.file_name() else {
            let root = self.duplicate().map_err(self.failure(name))?;
            return Ok(Some((root, ".".into())));
        };
        let mut at = self.duplicate().map_err(self.failure(name))?;
        for part in name.parent().into_iter().flat_map(Path::iter) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            at = match rustix::fs::openat(&at, part, flags, Mode::empty()) {
                Ok(next) => next,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(errno) => return Err(self.failure(name)(errno)),
            };
        }
        Ok(Some((at, last.to_owned())))
    }
}

fn open(above: &OwnedFd, last: &std::ffi::OsStr) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(above, last, flags, Mode::empty())?))
}

/// Removes user attributes that are not among them. Attributes that only the host may set are left alone: nothing
/// inside could have set them either.
fn set(file: &File, attributes: &Attributes) -> Result<(), Errno> {
    let mut names = vec![0; NAMES_MAX_BYTES];
    let length = match rustix::fs::flistxattr(file, &mut names) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        if attributes.iter().any(|(wanted, _)| wanted.to_bytes() == name) {
            continue;
        }
        match rustix::fs::fremovexattr(file, name) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    for (name, value) in attributes {
        match rustix::fs::fsetxattr(file, name.as_c_str(), value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::PERM) if !name.to_bytes().starts_with(b"user.") => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
