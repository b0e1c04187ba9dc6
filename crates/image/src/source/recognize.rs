//! Detects what a caller supplied: a tree, or one of the image formats.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::directory::DirectorySource;
use super::docker_archive::DockerArchive;
use super::oci_layout::{INDEX, MARK, OciLayout};
use super::place::{ImageLocation, Named, Names};
use super::section::Section;
use super::spool::SpoolDir;
use super::tar::TarSource;
use super::{Source, Wanted};
use crate::image::ImageError;
use sandkeep_core::limits;
use sandkeep_tree::{
    archive::{ArchiveError, Closing, Compression, Entries, Entry, Kind, decoded},
    digest::{Digest, Hasher},
};

/// An opened source of an image.
#[derive(Debug)]
pub enum Given {
    Directory(OwnedFd),
    File(File),
}

/// The detected format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Directory,
    Tar,
    OciLayout,
    DockerArchive,
}

/// Detects the format. A file is read through once; a compressed image archive is decompressed to `spool`. Blocks.
pub fn recognize(
    given: Given,
    wanted: Wanted,
    spool: &SpoolDir,
) -> Result<(Form, Box<dyn Source>), ImageError> {
    match given {
        Given::Directory(directory) => Ok(recognize_directory(directory, wanted)),
        Given::File(file) => recognize_file(file, wanted, spool),
    }
}

fn recognize_directory(directory: OwnedFd, wanted: Wanted) -> (Form, Box<dyn Source>) {
    let directory = Arc::new(directory);
    let place = ImageLocation::Directory(Arc::clone(&directory));
    if is_layout(&place) {
        (Form::OciLayout, Box::new(OciLayout { place, wanted }))
    } else {
        (Form::Directory, Box::new(DirectorySource::new(directory)))
    }
}

fn is_layout(place: &ImageLocation) -> bool {
    place.open(MARK).is_ok() && place.open(INDEX).is_ok()
}

fn recognize_file(
    file: File,
    wanted: Wanted,
    spool: &SpoolDir,
) -> Result<(Form, Box<dyn Source>), ImageError> {
    let file = Arc::new(file);
    let section = Section::whole(Arc::clone(&file)).map_err(failed)?;
    let mut scan = Scan::of(&section, spool)?;
    let holds_image = |name: &str| scan.names.found.contains_key(name.as_bytes());
    let may_be_image = holds_image(MARK) || holds_image(super::docker_archive::MANIFEST);
    if may_be_image {
        scan.names.file = Some(match scan.compression {
            Compression::None => file,
            Compression::Gzip | Compression::Zstd => Arc::new(unpack(&section, spool)?),
        });
        let place = ImageLocation::Archive(Arc::new(scan.names));
        if DockerArchive::is_one(&place) {
            return Ok((Form::DockerArchive, Box::new(DockerArchive { place, wanted })));
        }
        if is_layout(&place) {
            return Ok((Form::OciLayout, Box::new(OciLayout { place, wanted })));
        }
    }
    // Only the archive itself tells whether it is complete.
    match scan.closing {
        Closing::Marked => Ok((Form::Tar, Box::new(TarSource { section, diff_id: scan.diff_id }))),
        Closing::Unmarked => Err(archive_failed(ArchiveError::Truncated)),
    }
}

fn failed(source: io::Error) -> ImageError {
    ImageError::Io { what: "what was given".to_owned(), source }
}

fn archive_failed(error: ArchiveError) -> ImageError {
    match error {
        ArchiveError::Malformed { position: 0..=512, .. } => ImageError::Unknown {
            what: "the file".to_owned(),
            reason: "it is no tar, plain or compressed with gzip or zstd".to_owned(),
        },
        ArchiveError::Io(source) => failed(source),
        other => failed(other.into()),
    }
}

fn unpack(section: &Section, spool: &SpoolDir) -> Result<File, ImageError> {
    let archive = decoded(section.reader()).map_err(archive_failed)?;
    spool.take(archive).map_err(|error| archive_failed(error.into()))
}

/// The findings of reading an archive through.
struct Scan {
    compression: Compression,
    closing: Closing,
    diff_id: Digest,
    names: Names,
}

impl Scan {
    fn of(section: &Section, spool: &SpoolDir) -> Result<Self, ImageError> {
        let archive = decoded(section.reader()).map_err(archive_failed)?;
        let compression = archive.compression();
        let mut hasher = Hasher::new();
        // Without compression it is as large as it looks.
        let spool = Some(spool).filter(|_| compression != Compression::None);
        let hashed = Hashed { inner: archive, hasher: &mut hasher, spool, decoded: 0, asked: 0 };
        let mut entries = Entries::new(hashed);
        let mut found = HashMap::new();
        while let Some(entry) = entries.next().map_err(archive_failed)? {
            let content = (entries.position(), entries.data_left());
            if let Some((name, named)) = named(&entry, content)
                && found.len() < limits::IMAGE_ARCHIVE_FILES_MAX
            {
                found.insert(name, named);
            }
        }
        let closing = entries.finish().map_err(archive_failed)?;
        let names = Names { file: None, found };
        Ok(Self { compression, closing, diff_id: hasher.finish(), names })
    }
}

/// The role of an entry in an image archive. Files of a tree are mostly deeper, and are skipped.
fn named(entry: &Entry, (offset, size_bytes): (u64, u64)) -> Option<(Vec<u8>, Named)> {
    const DEPTH_MAX: usize = 3;
    let name = lexical(&[], &entry.path);
    if name.is_empty() || name.split(|byte| *byte == b'/').count() > DEPTH_MAX {
        return None;
    }
    let named = match &entry.kind {
        Kind::File { segments: None, .. } => Named::File { offset, size_bytes },
        Kind::Hardlink { target } => Named::Alias(lexical(&[], target)),
        Kind::Symlink { target } => {
            let parent = name.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            Named::Alias(lexical(&name[..parent], target))
        }
        Kind::File { .. } | Kind::Directory | Kind::Fifo | Kind::Device => return None,
    };
    Some((name, named))
}

/// A path from the top of the archive with `.` and `..` resolved lexically.
fn lexical(directory: &[u8], path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let from_top = if path.starts_with(b"/") { &[] } else { directory };
    for part in from_top.split(|byte| *byte == b'/').chain(path.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join(&b'/')
}

struct Hashed<'a, R> {
    inner: R,
    hasher: &'a mut Hasher,
    spool: Option<&'a SpoolDir>,
    decoded: u64,
    /// How much was decoded when it was last asked whether to go on.
    asked: u64,
}

impl<R: Read> Read for Hashed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        self.decoded += read as u64;
        if self.decoded - self.asked >= limits::DRAFT_LOOK_BYTES
            && let Some(spool) = self.spool
        {
            self.asked = self.decoded;
            spool.decoded(self.decoded)?;
        }
        Ok(read)
    }
}
