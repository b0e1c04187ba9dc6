//! The locations of a file's blocks on its device.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use super::holding::Extent;
use super::search::{CHUNK_ITEM, CHUNK_TREE, EXTENT_DATA, FIRST_CHUNK, Key, OWN_TREE, search_data};

/// The blocks of a file, as byte ranges of its file system's only device. The caller ensures that the file is not
/// written to.
pub fn places(file: impl AsFd) -> io::Result<Vec<Range<u64>>> {
    let chunks = chunks(&file)?;
    let object = rustix::fs::fstat(&file)?.st_ino;
    let key = |offset| Key { object, kind: EXTENT_DATA, offset };
    let mut places = Vec::new();
    search_data(&file, OWN_TREE, key(0), key(u64::MAX), 0, |item| {
        let Some(extent) = Extent::read(item.data) else { return };
        places.push(chunks.iter().find_map(|chunk| chunk.place_of(&extent)));
    })?;
    let unknown = || io::Error::new(io::ErrorKind::Unsupported, "a file lies in no simple chunk");
    places.into_iter().map(|place| place.ok_or_else(unknown)).collect()
}

/// A range of the file system's own addresses, and its position on the device.
struct Chunk {
    start: u64,
    bytes: u64,
    place: u64,
}

impl Chunk {
    /// Parses a `btrfs_chunk`. `None` for a mirrored or striped one.
    fn read(start: u64, data: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?));
        let stripes = u16::from_le_bytes(data.get(44..46)?.try_into().ok()?);
        (stripes == 1).then_some(Self { start, bytes: word(0)?, place: word(56)? })
    }

    fn place_of(&self, extent: &Extent) -> Option<Range<u64>> {
        let within = extent.place.checked_sub(self.start)?;
        let place = self.place + within;
        (within + extent.disk_bytes <= self.bytes).then(|| place..place + extent.disk_bytes)
    }
}

fn chunks(filesystem: impl AsFd) -> io::Result<Vec<Chunk>> {
    let key = |offset| Key { object: FIRST_CHUNK, kind: CHUNK_ITEM, offset };
    let mut chunks = Vec::new();
    search_data(filesystem, CHUNK_TREE, key(0), key(u64::MAX), 0, |item| {
        chunks.extend(Chunk::read(item.key.offset, item.data));
    })?;
    Ok(chunks)
}
