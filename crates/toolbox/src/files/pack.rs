//! A tree as an archive, streamed while it is read. FIFOs, sockets and devices are left out, because only programs
//! inside can use them.
//!
//! The tree is scanned first: if the user may not read all of it, that is an error instead of a partial archive, and
//! the size is known in advance.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use tar::{Builder, EntryType, Header};

use super::read::open_regular;
use crate::answer::{Failure, FailureKind, Packing};
use crate::request::RawPath;
use crate::wire::{DATA_MAX, Output};

pub fn pack(path: &RawPath, output: &mut Output) -> Result<(), Failure> {
    output.head(&survey(path.as_path())?)?;
    pack_to(path.as_path(), &mut Buffered::new(output))
}

/// The size of the archive, if everything is readable.
pub fn survey(root: &Path) -> Result<Packing, Failure> {
    let found = fs::metadata(root).map_err(|error| Failure::from_io(&error, Some(root)))?;
    let mut packing = Packing { entries: 0, bytes: 0, directory: found.is_dir() };
    if found.is_dir() {
        look_into(root, &mut packing)?;
        return Ok(packing);
    }
    // A single file is an archive of one, under its own name.
    open_regular(&RawPath::from(root))?;
    Ok(Packing { entries: 1, bytes: found.len(), ..packing })
}

/// Writes the archive of a tree, or of one file.
pub fn pack_to(root: &Path, to: &mut dyn io::Write) -> Result<(), Failure> {
    let mut archive = Archive { builder: Builder::new(to), linked: HashMap::new() };
    archive.builder.sparse(true);
    match (root.is_dir(), root.file_name()) {
        (false, Some(name)) => archive.file(root, Path::new(name))?,
        (true, _) | (false, None) => archive.directory(root, Path::new(""))?,
    }
    let finished = archive.builder.into_inner().and_then(|to| to.flush());
    finished.map_err(|error| Failure::from_io(&error, Some(root)))
}

/// Whether everything is readable, and its size.
fn look_into(directory: &Path, packing: &mut Packing) -> Result<(), Failure> {
    for entry in sorted(directory)? {
        let found = match fs::symlink_metadata(&entry) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Failure::from_io(&error, Some(&entry))),
        };
        packing.entries += 1;
        if found.is_dir() {
            look_into(&entry, packing)?;
        } else if found.is_file() {
            let access = rustix::fs::access(&entry, Access::READ_OK);
            access.map_err(|errno| Failure::from_errno(errno, &entry))?;
            packing.bytes += found.len();
        }
    }
    Ok(())
}

fn sorted(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failure = |error: io::Error| Failure::from_io(&error, Some(directory));
    let read = fs::read_dir(directory).map_err(failure)?;
    let mut paths = read
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<PathBuf>>>()
        .map_err(failure)?;
    paths.sort_unstable();
    Ok(paths)
}

struct Archive<'a> {
    builder: Builder<&'a mut dyn io::Write>,
    /// The first names of files with several, by device and inode.
    linked: HashMap<(u64, u64), PathBuf>,
}

impl Archive<'_> {
    fn directory(&mut self, directory: &Path, name: &Path) -> Result<(), Failure> {
        for path in sorted(directory)? {
            let Some(last) = path.file_name() else { continue };
            let name = name.join(last);
            let found = match fs::symlink_metadata(&path) {
                Ok(found) => found,
                // It existed a moment ago; an archive shows one moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Failure::from_io(&error, Some(&path))),
            };
            self.entry(&path, &name, &found)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &Path, found: &Metadata) -> Result<(), Failure> {
        let failure = |error: io::Error| Failure::from_io(&error, Some(path));
        if found.is_dir() {
            let mut header = header(found, EntryType::Directory);
            // With a trailing slash, so that it is not mistaken for a file.
            let mut named = name.as_os_str().to_owned();
            named.push("/");
            self.builder.append_data(&mut header, named, io::empty()).map_err(failure)?;
            return self.directory(path, name);
        }
        if found.is_symlink() {
            let target = fs::read_link(path).map_err(failure)?;
            let mut header = header(found, EntryType::Symlink);
            return self.builder.append_link(&mut header, name, target).map_err(failure);
        }
        if !found.is_file() {
            return Ok(());
        }
        let key = (found.dev(), found.ino());
        if found.nlink() > 1
            && let Some(first) = self.linked.get(&key)
        {
            let mut header = header(found, EntryType::Link);
            return self.builder.append_link(&mut header, name, first).map_err(failure);
        }
        if found.nlink() > 1 {
            self.linked.insert(key, name.to_owned());
        }
        self.file(path, name)
    }

    fn file(&mut self, path: &Path, name: &Path) -> Result<(), Failure> {
        let (file, _) = open_regular(&RawPath::from(path))?;
        let failure = |error: io::Error| Failure::from_io(&error, Some(path));
        let found = file.metadata().map_err(failure)?;
        let mut content = Exactly { file, left: found.len() };
        let appended = if found.blocks() * 512 < found.len() {
            // Its holes need not be sent.
            self.builder.append_file(name, &mut content.file)
        } else {
            let mut header = header(&found, EntryType::Regular);
            self.builder.append_data(&mut header, name, &mut content)
        };
        appended.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let message = "it became shorter while it was read";
                Failure::new(FailureKind::Changed, message).at(path)
            }
            _ => failure(error),
        })
    }
}

fn header(found: &Metadata, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_metadata(found);
    header.set_entry_type(kind);
    header.set_size(if kind == EntryType::Regular { found.len() } else { 0 });
    header
}

/// Exactly as many bytes of a file as its header says: later additions are ignored.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        match self.file.read(&mut buffer[..wanted])? {
            0 if self.left > 0 && wanted > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.left -= count as u64;
                Ok(count)
            }
        }
    }
}

/// Combines many small writes into a few large frames.
struct Buffered<'a, 'b> {
    output: &'a mut Output<'b>,
    held: Vec<u8>,
}

impl<'a, 'b> Buffered<'a, 'b> {
    fn new(output: &'a mut Output<'b>) -> Self {
        Self { output, held: Vec::with_capacity(DATA_MAX) }
    }
}

impl io::Write for Buffered<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.held.len() == DATA_MAX {
            self.flush()?;
        }
        let count = bytes.len().min(DATA_MAX - self.held.len());
        self.held.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        let sent = self.output.data(&self.held).map_err(io::Error::other);
        self.held.clear();
        sent
    }
}
