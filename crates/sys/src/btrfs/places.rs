//! Where on its device the blocks of a file lie.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use super::holding::Extent;
use super::search::{CHUNK_ITEM, CHUNK_TREE, EXTENT_DATA, FIRST_CHUNK, Key, OWN_TREE, search_data};

/// The blocks of a file, as ranges of bytes of the one device that its filesystem has. The caller makes sure that the file
/// is not written to.
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

/// A part of the filesystem's own addresses, and where it begins on the device.
struct Chunk {
    start: u64,
    bytes: u64,
    place: u64,
}

impl Chunk {
    /// From a `btrfs_chunk`. `None` for one that is on the device more than once, or in stripes.
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
