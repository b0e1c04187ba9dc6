//! The files of an image archive or layout: in a directory, or in a tar.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::section::Section;
use crate::image::ImageError;
use crate::manifest::Descriptor;
use sandkeep_core::limits;
use sandkeep_tree::{
    beneath,
    digest::{Digest, Mismatch},
};

/// Maximum length of a chain of links in an archive; some archives store equal layers as links.
const ALIASES_MAX: usize = 8;

#[derive(Clone)]
pub(super) enum ImageLocation {
    /// Links in it are not followed.
    Directory(Arc<OwnedFd>),
    Archive(Arc<Names>),
}

/// The entries of an archive by name. Links in it are aliases of names, resolved nowhere else.
#[derive(Default)]
pub(super) struct Names {
    pub(super) file: Option<Arc<File>>,
    pub(super) found: HashMap<Vec<u8>, Named>,
}

pub(super) enum Named {
    File { offset: u64, size_bytes: u64 },
    Alias(Vec<u8>),
}

impl Names {
    fn get(&self, name: &str) -> Option<Section> {
        let mut name = name.as_bytes();
        for _ in 0..ALIASES_MAX {
            match self.found.get(name)? {
                Named::File { offset, size_bytes } => {
                    return Some(Section::new(
                        Arc::clone(self.file.as_ref()?),
                        *offset,
                        *size_bytes,
                    ));
                }
                Named::Alias(other) => name = other,
            }
        }
        None
    }
}

impl ImageLocation {
    /// Opens a file by its path from the top.
    pub(super) fn open(&self, path: &str) -> Result<Section, ImageError> {
        let missing = || ImageError::Missing { what: format!("{path:?} of the image") };
        let directory = match self {
            Self::Archive(names) => return names.get(path).ok_or_else(missing),
            Self::Directory(directory) => directory,
        };
        let failed = |source| ImageError::Io { what: format!("{path:?} of the image"), source };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = match beneath::open(directory, path.as_bytes(), flags) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(missing()),
            Err(error) => return Err(failed(error.into())),
        };
        if !file.metadata().map_err(failed)?.is_file() {
            let reason = format!("{path:?} is not a file");
            return Err(ImageError::Invalid { what: "the layout of the image", reason });
        }
        Section::whole(Arc::new(file)).map_err(failed)
    }

    /// The file of a blob; its size is checked, its digest is not.
    pub(super) fn blob(&self, named: &Descriptor) -> Result<Section, ImageError> {
        let section = self.open(&format!("blobs/sha256/{}", named.digest.hex()))?;
        let (expected, expected_bytes) = (named.digest, named.size_bytes);
        let found_bytes = section.size_bytes();
        if found_bytes == expected_bytes {
            Ok(section)
        } else {
            Err(mismatch(Mismatch::Size { expected, expected_bytes, found_bytes }))
        }
    }

    /// A document by its digest, verified.
    pub(super) fn document(
        &self,
        named: &Descriptor,
        what: &'static str,
    ) -> Result<Vec<u8>, ImageError> {
        let bytes = self.blob(named)?.bytes(what, limits::IMAGE_MANIFEST_MAX_BYTES)?;
        checked(&bytes, named.digest)?;
        Ok(bytes)
    }
}

pub(super) fn checked(bytes: &[u8], expected: Digest) -> Result<(), ImageError> {
    let found = Digest::of(bytes);
    if found == expected { Ok(()) } else { Err(mismatch(Mismatch::Digest { expected, found })) }
}

fn mismatch(mismatch: Mismatch) -> ImageError {
    ImageError::Io { what: "a blob of the image".to_owned(), source: mismatch.into() }
}
