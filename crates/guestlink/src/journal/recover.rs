//! Reads the journals of a daemon that died: complete records count, an incomplete last one is cut off. The guest still
//! has the cut-off data, because it was never acknowledged.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::cover::{self, Cover, TAIL_MAGIC, read_up_to};
use super::index::JournalSpace;
use super::record::{HEADER_LEN, Header, RECORD_MAX, of_mut};
use super::writer::{TAILS_KEPT, Tail, WritePosition, Writer, private_file, remove_if_there};
use super::{Description, Journal, Progress, segment_path};
use crate::Offsets;
use sandkeep_core::{ExecId, limits};

/// How much is read at once: at least one complete record.
pub(super) const BLOCK_LEN: usize = 4 * (RECORD_MAX + HEADER_LEN);

/// An exec that an earlier daemon started and whose end is not journaled.
pub struct Unfinished {
    pub description: Description,
    pub writer: Writer,
}

/// The content of a journal's files.
pub(super) enum Read {
    Ended {
        journal: Arc<Journal>,
        description: Box<Description>,
    },
    Unfinished(Box<Unfinished>),
    /// Its cover is incomplete: the exec never started.
    Nothing,
}

/// Reads the journal of `id`, whose tails have these numbers, in order.
pub(super) fn read(room: &Arc<JournalSpace>, id: &ExecId, tails: &[u32]) -> io::Result<Read> {
    let dir = room.dir();
    // A crash may have happened between creating a new tail and removing the oldest.
    let (old, tails) = tails.split_at(tails.len().saturating_sub(TAILS_KEPT as usize));
    for number in old {
        remove_if_there(&segment_path(dir, id, *number))?;
    }
    let head = private_file().open(segment_path(dir, id, 0))?;
    let Some(Cover { description, end, len }) = cover::read(&head)? else {
        return Ok(Read::Nothing);
    };
    let Some(end) = end else {
        let head = Arc::new(head);
        let place = find_place(dir, id, &head, len, tails)?;
        let held_bytes = place.disk_bytes + limits::JOURNAL_FLOOR_BYTES;
        room.account().count(held_bytes);
        let journal = Journal::new(Arc::clone(dir), id.clone(), place.progress(), held_bytes);
        let writer = Writer::new(room, Arc::new(journal), head, place);
        return Ok(Read::Unfinished(Box::new(Unfinished { description, writer })));
    };
    let mut disk_bytes = head.metadata()?.len();
    let mut last = (0, disk_bytes);
    for tail in tails {
        let len = std::fs::metadata(segment_path(dir, id, *tail))?.len();
        disk_bytes += len;
        last = (*tail, len);
    }
    let progress = Progress {
        segment: last.0,
        len: last.1,
        disk_bytes,
        written: end.written,
        dropped: end.dropped,
        end: Some(Arc::new(end)),
    };
    room.account().count(disk_bytes);
    let journal = Arc::new(Journal::new(Arc::clone(dir), id.clone(), progress, disk_bytes));
    Ok(Read::Ended { journal, description: Box::new(description) })
}

/// Where to continue: after the last complete record of the last segment, which is truncated there.
fn find_place(
    dir: &Path,
    id: &ExecId,
    head: &Arc<File>,
    cover_len: u64,
    tails: &[u32],
) -> io::Result<WritePosition> {
    let mut place = WritePosition::first(head, cover_len);
    let in_head = scan(head, cover_len, &mut place.written)?;
    let mut kept = in_head.kept;
    (place.len, place.disk_bytes) = (in_head.len, in_head.len);
    for number in tails {
        let file = private_file().open(segment_path(dir, id, *number))?;
        let tail = scan(&file, TAIL_MAGIC.len() as u64, &mut place.written)?;
        kept.stdout += tail.kept.stdout;
        kept.stderr += tail.kept.stderr;
        place.disk_bytes += tail.len;
        place.tails.push_back(tail);
        (place.file, place.segment, place.len) = (Arc::new(file), *number, tail.len);
    }
    place.dropped = Offsets {
        stdout: place.written.stdout - kept.stdout,
        stderr: place.written.stderr - kept.stderr,
    };
    place.file.set_len(place.len)?;
    Ok(place)
}

/// Reads the records of a segment, advances `written` to the last, and returns where that ends.
fn scan(file: &File, start: u64, written: &mut Offsets) -> io::Result<Tail> {
    let size = file.metadata()?.len();
    let mut scanned = Tail { len: start, kept: Offsets::default() };
    let mut block = vec![0; BLOCK_LEN];
    loop {
        let count = read_up_to(file, &mut block, scanned.len)?;
        let (mut at, mut found) = (0, false);
        while let Some(header) = header_at(&block[..count], at) {
            if scanned.len + header.size() > size || header.offset < *of_mut(written, header.stream)
            {
                return Ok(scanned);
            }
            *of_mut(written, header.stream) = header.end();
            *of_mut(&mut scanned.kept, header.stream) += u64::from(header.len);
            scanned.len += header.size();
            // A record is shorter than a block.
            at += header.size() as usize;
            found = true;
        }
        if !found || scanned.len >= size {
            return Ok(scanned);
        }
    }
}

/// The header at this position of a block, if it is complete and valid.
pub(super) fn header_at(block: &[u8], at: usize) -> Option<Header> {
    Header::decode(block.get(at..)?.first_chunk::<HEADER_LEN>()?)
}
