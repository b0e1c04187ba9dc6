//! Unpacks an archive into a directory. No entry can leave it: paths are relative and without `..`, no component may be
//! a symbolic link, whether or not it comes from the archive, and a hard link refers to a file below the same
//! directory. The target of a symbolic link does not matter: links are only created, never followed.
//!
//! A file is complete or missing; if an archive fails in the middle, earlier entries stay.

mod place;
mod restore;

use std::fs;
use std::io::{Read, Seek};
use std::path::{Component, Path, PathBuf};

use tar::{Archive, EntryType};

use self::place::{Stamp, UnpackTarget};
use super::write::make_parents;
use crate::answer::{EntryKind, Failure, FailureKind, Unpacked};
use crate::request::{Ownership, UnpackArchive};
use crate::wire::{DATA_MAX, Input};
pub use restore::{GONE, METADATA, restore, restore_all};

/// The mode bits that an archive sets for a user's own files: without set-id bits.
const OWN_PERMISSIONS: u32 = 0o777;
const ALL_PERMISSIONS: u32 = 0o7777;

pub fn unpack(request: &UnpackArchive, input: &mut Input) -> Result<Unpacked, Failure> {
    // Without a trailing dot, below which nothing can be created.
    let root: PathBuf = request.path.as_path().components().collect();
    make_parents(&root.join("entry"), request.parents)?;
    unpack_into(&root, request.ownership, input)
}

/// Unpacks a stream into an existing directory.
pub fn unpack_into(
    root: &Path,
    ownership: Ownership,
    from: &mut dyn Read,
) -> Result<Unpacked, Failure> {
    let found = fs::metadata(root).map_err(|error| Failure::from_io(&error, Some(root)))?;
    if !found.is_dir() {
        let message = "an archive is unpacked into a directory, and this is none";
        return Err(Failure::new(FailureKind::NotADirectory, message).at(root));
    }
    let mut unpacking = Unpacking {
        place: UnpackTarget::open(root)?,
        ownership,
        directories: Vec::new(),
        unpacked: Unpacked { entries: 0, bytes: 0 },
    };
    let mut archive = Archive::new(&mut *from);
    let entries = archive.entries().map_err(damaged)?;
    for entry in entries {
        unpacking.take(entry.map_err(damaged)?)?;
    }
    drain(from)?;
    unpacking.finish()
}

/// What an archive would write, as interpreted by [`unpack_into`], without writing any of it.
pub fn archive_entries(from: impl Read + Seek) -> Result<Vec<ArchiveEntry>, Failure> {
    let mut archive = Archive::new(from);
    let mut found = Vec::new();
    for entry in archive.entries_with_seek().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        let path = relative(&entry.path().map_err(damaged)?)?;
        let (kind, other) = match entry.header().entry_type() {
            EntryType::Directory => (EntryKind::Directory, None),
            EntryType::Symlink => (EntryKind::Symlink, None),
            // A second name of a file gives access to it.
            EntryType::Link => (EntryKind::File, Some(relative(&link_name(&entry, &path)?)?)),
            _ => (EntryKind::File, None),
        };
        let names = std::iter::once(path).chain(other).filter(|name| !name.as_os_str().is_empty());
        found.extend(names.map(|path| ArchiveEntry { path, kind }));
    }
    Ok(found)
}

/// An entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveEntry {
    pub path: PathBuf,
    pub kind: EntryKind,
}

/// Data after the archive's own end still belongs to it.
fn drain(from: &mut dyn Read) -> Result<(), Failure> {
    let mut rest = vec![0; DATA_MAX];
    while from.read(&mut rest).map_err(damaged)? > 0 {}
    Ok(())
}

struct Unpacking {
    place: UnpackTarget,
    ownership: Ownership,
    /// They get their modes and times at the end: until then entries are written into them.
    directories: Vec<(PathBuf, Stamp)>,
    unpacked: Unpacked,
}

impl Unpacking {
    fn take<R: Read>(&mut self, mut entry: tar::Entry<'_, R>) -> Result<(), Failure> {
        let path = entry.path().map_err(damaged)?.into_owned();
        let name = relative(&path)?;
        let stamp = self.stamp(entry.header()).map_err(damaged)?;
        self.unpacked.entries += 1;
        match entry.header().entry_type() {
            EntryType::Directory => {
                self.place.directory(&name)?;
                self.directories.push((name, stamp));
            }
            // The root of the archive itself.
            _ if name.as_os_str().is_empty() => {}
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let size = entry.size();
                self.unpacked.bytes += self.place.file(&name, (&mut entry, size), &stamp)?;
            }
            EntryType::Symlink => {
                let target = link_name(&entry, &name)?;
                self.place.symlink(&name, &target, &stamp)?;
            }
            EntryType::Link => {
                let target = relative(&link_name(&entry, &name)?)?;
                self.place.hard_link(&name, &target)?;
            }
            EntryType::XGlobalHeader => {}
            other => {
                let message = format!(
                    "it is {}: an archive may hold files, directories and links alone",
                    kind_name(other)
                );
                return Err(Failure::new(FailureKind::NotRegular, message).at(path));
            }
        }
        Ok(())
    }

    fn stamp(&self, header: &tar::Header) -> std::io::Result<Stamp> {
        let (permissions, owner) = match self.ownership {
            Ownership::Own => (OWN_PERMISSIONS, None),
            Ownership::Keep => {
                let id = |id: u64| u32::try_from(id).map_err(std::io::Error::other);
                (ALL_PERMISSIONS, Some((id(header.uid()?)?, id(header.gid()?)?)))
            }
        };
        Ok(Stamp { mode: header.mode()? & permissions, owner, modified: header.mtime()? })
    }

    fn finish(self) -> Result<Unpacked, Failure> {
        for (name, stamp) in self.directories.iter().rev() {
            self.place.stamp_directory(name, stamp)?;
        }
        Ok(self.unpacked)
    }
}

fn kind_name(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Char | EntryType::Block => "a device",
        EntryType::Fifo => "a FIFO",
        _ => "of an unknown kind",
    }
}

fn link_name<R: Read>(entry: &tar::Entry<'_, R>, name: &Path) -> Result<PathBuf, Failure> {
    let target = entry.link_name().map_err(damaged)?;
    let none = || Failure::new(FailureKind::Invalid, "it is a link to nothing").at(name);
    target.map(|target| target.into_owned()).ok_or_else(none)
}

/// The normalized path of an entry; refused if it leads elsewhere.
fn relative(path: &Path) -> Result<PathBuf, Failure> {
    let mut name = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => name.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                let message = "the archive has a path that is absolute or has `..` in it; all must be \
                               relative to where it is unpacked";
                return Err(Failure::new(FailureKind::Invalid, message).at(path));
            }
        }
    }
    Ok(name)
}

/// An error in the middle of a file: of the disk, or of the sent data.
fn unread(error: &std::io::Error, path: &Path) -> Failure {
    match (error.raw_os_error(), error.get_ref().and_then(|e| e.downcast_ref::<Failure>())) {
        (_, Some(failure)) => failure.clone(),
        (Some(_), None) => Failure::from_io(error, Some(path)),
        (None, None) => {
            let message = format!("the archive cannot be read: {error}");
            Failure::new(FailureKind::Invalid, message).at(path)
        }
    }
}

/// The data is not an archive, or was truncated.
fn damaged(error: std::io::Error) -> Failure {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<Failure>()) {
        Some(failure) => failure.clone(),
        None => {
            let message = format!("it is not a tar archive that can be read: {error}");
            Failure::new(FailureKind::Invalid, message)
        }
    }
}
