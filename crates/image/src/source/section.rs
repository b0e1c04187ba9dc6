//! A section of a file, such as a blob in an archive. Read with explicit offsets, so that many can be read concurrently
//! from one descriptor.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use async_trait::async_trait;

use crate::image::{Blob, ImageError, Progress};
use sandkeep_tree::digest::{Digest, Verified};

#[derive(Clone, Debug)]
pub struct Section {
    file: Arc<File>,
    offset: u64,
    size_bytes: u64,
}

impl Section {
    pub(crate) fn new(file: Arc<File>, offset: u64, size_bytes: u64) -> Self {
        Self { file, offset, size_bytes }
    }

    pub fn whole(file: Arc<File>) -> io::Result<Self> {
        let size_bytes = file.metadata()?.len();
        Ok(Self { file, offset: 0, size_bytes })
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub fn reader(&self) -> SectionReader {
        let end = self.offset.saturating_add(self.size_bytes);
        SectionReader { file: Arc::clone(&self.file), offset: self.offset, end }
    }

    /// All of it, if it has at most `max` bytes.
    pub(crate) fn bytes(&self, what: &'static str, max: usize) -> Result<Vec<u8>, ImageError> {
        if self.size_bytes > max as u64 {
            let reason = format!("it is larger than {max} bytes");
            return Err(ImageError::Invalid { what, reason });
        }
        let mut bytes = Vec::new();
        match self.reader().read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(source) => Err(ImageError::Io { what: what.to_owned(), source }),
        }
    }
}

pub struct SectionReader {
    file: Arc<File>,
    offset: u64,
    end: u64,
}

impl Read for SectionReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
        let room = left.min(buffer.len());
        let read = self.file.read_at(&mut buffer[..room], self.offset)?;
        if read == 0 && room > 0 {
            // The file was truncated since it was indexed.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += read as u64;
        Ok(read)
    }
}

/// A section as a layer's bytes.
pub struct SectionBlob {
    pub section: Section,
    /// The digest in its name, if the name is a digest.
    pub expected: Option<Digest>,
}

#[async_trait]
impl Blob for SectionBlob {
    fn size_bytes(&self) -> Option<u64> {
        Some(self.section.size_bytes())
    }

    async fn open(&self, progress: &Progress) -> Result<Box<dyn Read + Send>, ImageError> {
        progress.tell(self.section.size_bytes());
        let reader = self.section.reader();
        Ok(match self.expected {
            Some(digest) => {
                Box::new(Verified::new(reader, digest, Some(self.section.size_bytes())))
            }
            None => Box::new(reader),
        })
    }
}
