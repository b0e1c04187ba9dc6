//! Sparse files: which parts of a file are in the archive. The rest are holes.

use std::io::Read;

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use super::pax::{self, SparseRecords};
use super::reader::Entries;
use super::{ArchiveError, BLOCK_BYTES, Damage};
use sandkeep_core::limits;

/// A part of a file that is not a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub size_bytes: u64,
}

/// A valid map: ordered, without overlaps, within the file, and with the exact number of bytes in the archive.
pub(super) fn checked(
    segments: &[Segment],
    real_size: u64,
    archived_bytes: u64,
) -> Result<(), Damage> {
    let mut end = 0;
    let mut total = 0_u64;
    for segment in segments {
        if segment.offset < end {
            return Err(Damage::SparseOverlap);
        }
        end = segment
            .offset
            .checked_add(segment.size_bytes)
            .filter(|end| *end <= real_size)
            .ok_or(Damage::SparseBeyondEnd)?;
        total += segment.size_bytes;
    }
    if total == archived_bytes { Ok(()) } else { Err(Damage::SparseSum) }
}

/// The map of the old GNU format: in the header and in blocks right after it.
pub(super) fn old_gnu<R: Read>(
    entries: &mut Entries<R>,
    header: &Header,
) -> Result<(Vec<Segment>, u64), ArchiveError> {
    let Some(gnu) = header.as_gnu() else {
        return Err(entries.malformed(Damage::SparseHeader));
    };
    let bad = |entries: &Entries<R>| entries.malformed(Damage::SparseMap);
    let real_size = gnu.real_size().map_err(|_| bad(entries))?;
    let mut segments = Vec::new();
    let mut more = extend(&mut segments, &gnu.sparse).map_err(|()| bad(entries))? == More::Maybe
        && gnu.is_extended();
    while more {
        let mut block = GnuExtSparseHeader::new();
        entries.read_block(block.as_mut_bytes())?;
        let full = extend(&mut segments, block.sparse()).map_err(|()| bad(entries))?;
        more = full == More::Maybe && block.is_extended();
        within_count(segments.len())?;
    }
    Ok((segments, real_size))
}

#[derive(PartialEq, Eq)]
enum More {
    Maybe,
    /// An empty entry ends a map.
    No,
}

fn extend(segments: &mut Vec<Segment>, places: &[GnuSparseHeader]) -> Result<More, ()> {
    for place in places {
        if place.is_empty() {
            return Ok(More::No);
        }
        let offset = place.offset().map_err(|_| ())?;
        segments.push(Segment { offset, size_bytes: place.length().map_err(|_| ())? });
    }
    Ok(More::Maybe)
}

/// The map of a PAX format, if the records mention one. In the third format it precedes the file's own bytes, and is
/// read from there.
pub(super) fn from_pax<R: Read>(
    entries: &mut Entries<R>,
    records: &SparseRecords,
) -> Result<Option<(Vec<Segment>, u64)>, ArchiveError> {
    let map = match (records.major, records.minor) {
        (Some(1), Some(0)) => read_map(entries)?,
        (None | Some(0), _) if records.has_map => records.map.clone(),
        (None | Some(0), _) => return Ok(None),
        (Some(_), _) => return Err(entries.malformed(Damage::SparseForm)),
    };
    let Some(real_size) = records.real_size else {
        return Err(entries.malformed(Damage::SparseSize));
    };
    if !map.len().is_multiple_of(2) {
        return Err(entries.malformed(Damage::SparseHalfPart));
    }
    within_count(map.len() / 2)?;
    let segment = |pair: &[u64]| Segment { offset: pair[0], size_bytes: pair[1] };
    Ok(Some((map.chunks_exact(2).map(segment).collect(), real_size)))
}

/// Decimal numbers, one per line, padded to whole blocks: first the number of parts.
fn read_map<R: Read>(entries: &mut Entries<R>) -> Result<Vec<u64>, ArchiveError> {
    let (mut numbers, mut wanted): (Vec<u64>, usize) = (Vec::new(), 1);
    let mut line = Vec::new();
    while numbers.len() < wanted {
        let mut block = [0; BLOCK_BYTES];
        entries.read_data_block(&mut block)?;
        for byte in block {
            if numbers.len() == wanted {
                break;
            }
            match byte {
                b'\n' => {
                    let number = pax::number(&line).map_err(|damage| entries.malformed(damage))?;
                    if numbers.is_empty() {
                        let parts = usize::try_from(number).unwrap_or(usize::MAX);
                        within_count(parts)?;
                        wanted = 1 + 2 * parts;
                    }
                    numbers.push(number);
                    line.clear();
                }
                digit => line.push(digit),
            }
        }
        if line.len() > BLOCK_BYTES {
            return Err(entries.malformed(Damage::SparseMap));
        }
    }
    numbers.remove(0);
    Ok(numbers)
}

fn within_count(found: usize) -> Result<(), ArchiveError> {
    let max = limits::LAYER_SPARSE_PARTS_MAX;
    if found > max {
        Err(ArchiveError::TooLarge { what: "parts of one sparse file", max: max as u64 })
    } else {
        Ok(())
    }
}
