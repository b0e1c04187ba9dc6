//! Tar archives. The reader accepts arbitrary bytes: it is bounded in memory, interprets entries like Go's reader (and
//! so every other tool for images), and reports clearly where an archive ends too soon. The writer produces the same
//! archive for the same directory.

pub mod attributes;
#[cfg(any(test, feature = "building"))]
pub mod building;
mod chosen;
mod compression;
mod damage;
mod entry;
mod header;
mod pax;
mod reader;
mod sparse;
mod tree;
mod writer;

use std::io;

pub use chosen::{ChosenArchive, Hardlinks, Piece};
pub use compression::{Compression, Decoded, decoded};
pub use damage::Damage;
pub use entry::{Attributes, Entry, Kind, Moment};
pub use reader::{Closing, Entries};
pub use sparse::Segment;
pub use tree::{Filter, Kept, TreeArchive, TreeOwner};
pub use writer::Writer;

/// The unit of an archive.
pub(super) const BLOCK_BYTES: usize = 512;

/// Why bytes are not an acceptable archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("cannot read the archive")]
    Io(#[source] io::Error),
    #[error("the archive ends in the middle: it was cut off")]
    Truncated,
    #[error("the archive is damaged at byte {position}: {damage}")]
    Malformed { position: u64, damage: Damage },
    #[error("{path:?} in the archive cannot be used: {what}")]
    Entry { path: String, what: String },
    #[error("the archive is too large: more than {max} {what}")]
    TooLarge { what: &'static str, max: u64 },
}

impl From<io::Error> for ArchiveError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => match error.downcast::<Self>() {
                Ok(own) => own,
                Err(error) => Self::Io(error),
            },
        }
    }
}

impl From<ArchiveError> for io::Error {
    fn from(error: ArchiveError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
