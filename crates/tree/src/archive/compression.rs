//! Decompresses an archive: the format is detected by its first bytes, whatever its declared type, and size and
//! compression ratio are limited.

use std::io::{self, BufReader, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::ArchiveError;
use sandkeep_core::limits;

const BUFFER_BYTES: usize = 256 * 1024;
/// Length of the longest magic number.
const MARK_BYTES: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// The format of these first bytes.
    pub fn of(start: &[u8]) -> Result<Self, ArchiveError> {
        match start {
            [0x1F, 0x8B, ..] => Ok(Self::Gzip),
            // The second is a skippable frame, which may come first.
            [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Ok(Self::Zstd),
            [b'B', b'Z', b'h', ..] => Err(unknown("bzip2")),
            [0xFD, b'7', b'z', b'X', b'Z', 0] => Err(unknown("xz")),
            _ => Ok(Self::None),
        }
    }
}

fn unknown(name: &str) -> ArchiveError {
    let what = format!("it is compressed with {name}; use gzip, zstd or nothing");
    ArchiveError::Entry { path: String::new(), what }
}

/// The decompressed content of a blob.
pub struct Decoded {
    inner: Box<dyn Read + Send>,
    compression: Compression,
    taken_bytes: Arc<AtomicU64>,
    given_bytes: u64,
}

/// Starts decompressing a blob.
pub fn decoded(blob: impl Read + Send + 'static) -> Result<Decoded, ArchiveError> {
    let taken_bytes = Arc::new(AtomicU64::new(0));
    let mut blob = Counted { inner: blob, count: Arc::clone(&taken_bytes) };
    let mut start = Vec::with_capacity(MARK_BYTES);
    blob.by_ref().take(MARK_BYTES as u64).read_to_end(&mut start)?;
    let compression = Compression::of(&start)?;
    let whole = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(start).chain(blob));
    let inner: Box<dyn Read + Send> = match compression {
        Compression::None => Box::new(whole),
        Compression::Gzip => Box::new(MultiGzDecoder::new(whole)),
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(whole)?),
    };
    Ok(Decoded { inner, compression, taken_bytes, given_bytes: 0 })
}

impl Decoded {
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// The number of bytes consumed from the blob, readable at any time.
    pub fn taken(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.taken_bytes)
    }

    fn check(&self) -> Result<(), ArchiveError> {
        if self.given_bytes > limits::LAYER_MAX_BYTES {
            return Err(ArchiveError::TooLarge { what: "bytes", max: limits::LAYER_MAX_BYTES });
        }
        let taken = self.taken_bytes.load(Ordering::Relaxed);
        let fair =
            taken.saturating_mul(limits::LAYER_RATIO_MAX).max(limits::LAYER_RATIO_FREE_BYTES);
        if self.given_bytes > fair {
            Err(ArchiveError::TooLarge {
                what: "bytes out of each compressed one",
                max: limits::LAYER_RATIO_MAX,
            })
        } else {
            Ok(())
        }
    }
}

impl Read for Decoded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.given_bytes += read as u64;
        self.check()?;
        Ok(read)
    }
}

struct Counted<R> {
    inner: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
