//! Writes a journal.
//!
//! Output goes to the head until that is full, then to tails of which only the last two are kept:
//!
//! ```text
//!   head │ 1 │ 2 │ 3 │ 4        1 and 2 are removed: readers see a gap in the offsets
//!          ───────   ─────
//!          dropped   kept
//! ```
//!
//! Data that cannot be written, because the disk is full, is dropped as well, counted, and reported with the end; the
//! exec continues.
//!
//! Little output is written at once, on the thread that received it: it costs some microseconds. A flood is handed to a
//! thread that may block, because the kernel blocks writers that dirty more than its disks can take.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::index::JournalSpace;
use super::record::{HEADER_LEN, Header, RECORD_MAX, of, of_mut};
use super::{Journal, Progress, cover};
use crate::{ExecEnd, Offsets, OutputStream};
use sandkeep_core::ledger::Over;
use sandkeep_core::limits;

/// Number of kept tails, including the current one.
pub(super) const TAILS_KEPT: u32 = 2;
/// The divisor of an exec's maximum for each tail; the head gets the rest.
const TAIL_SHARE: u64 = 8;
/// The size of a tail when only the minimum space is available, and the longest record in it.
const FLOOR_TAIL: u64 = limits::JOURNAL_FLOOR_BYTES / TAILS_KEPT as u64;
const FLOOR_RECORD_MAX: usize = 4 * 1024;

pub struct Writer {
    room: Arc<JournalSpace>,
    journal: Arc<Journal>,
    head: Arc<File>,
    place: WritePosition,
    /// Why there is no more, if there is none: only the tails go on, within the floor.
    over: Option<Over>,
    /// How much was written directly so far.
    at_once: u64,
    /// A write in progress on another thread, and its record.
    pending: Option<(Header, JoinHandle<io::Result<()>>)>,
    /// Why something could not be written.
    fault: Option<String>,
}

/// The position of the next record, and what is before it.
pub(super) struct WritePosition {
    pub file: Arc<File>,
    pub segment: u32,
    /// The length of that segment.
    pub len: u64,
    /// The kept tails, oldest first; the last is the current one.
    pub tails: VecDeque<Tail>,
    /// All segments together.
    pub disk_bytes: u64,
    pub written: Offsets,
    pub dropped: Offsets,
}

/// The content of a tail.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tail {
    pub kept: Offsets,
    pub len: u64,
}

impl WritePosition {
    /// After the cover.
    pub fn first(head: &Arc<File>, len: u64) -> Self {
        Self {
            file: Arc::clone(head),
            segment: 0,
            len,
            tails: VecDeque::new(),
            disk_bytes: len,
            written: Offsets::default(),
            dropped: Offsets::default(),
        }
    }

    pub fn progress(&self) -> Progress {
        let Self { segment, len, written, dropped, disk_bytes, .. } = *self;
        Progress { segment, len, disk_bytes, written, dropped, end: None }
    }
}

impl Writer {
    pub(super) fn new(
        room: &Arc<JournalSpace>,
        journal: Arc<Journal>,
        head: Arc<File>,
        place: WritePosition,
    ) -> Self {
        let room = Arc::clone(room);
        let (over, pending, fault) = (None, None, None);
        Self { room, journal, head, place, over, at_once: 0, pending, fault }
    }

    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// The offsets up to which it has the output.
    pub fn written(&self) -> Offsets {
        self.place.written
    }

    /// Appends output. Known data is skipped; missing data before it is a gap. Cancel-safe: after a dropped call the
    /// same data may be passed again.
    pub async fn append(&mut self, stream: OutputStream, offset: u64, data: &Bytes) {
        self.flush().await;
        let known = of(&self.place.written, stream).saturating_sub(offset).min(data.len() as u64);
        let mut offset = offset + known;
        // At most the length of a buffer in memory.
        let mut data = data.slice(known as usize..);
        while !data.is_empty() {
            let piece = data.split_to(self.afford(data.len()));
            // A record has at most RECORD_MAX bytes.
            let header = Header { stream, offset, len: piece.len() as u32 };
            offset = header.end();
            self.write(header, piece).await;
        }
    }

    /// Reserves space for the next record, and returns how many of `len` bytes it may have.
    fn afford(&mut self, len: usize) -> usize {
        let record = len.min(RECORD_MAX);
        let size = (HEADER_LEN + record) as u64;
        let need = self.place.disk_bytes + size + limits::JOURNAL_FLOOR_BYTES;
        let held_bytes = &self.journal.held_bytes;
        let more = need.saturating_sub(held_bytes.load(Ordering::Relaxed));
        if self.over.is_none() && more > 0 {
            match self.room.make_room(|account| account.grow(more)) {
                // Only its writer makes it more, and nobody makes it less before the end is written.
                Ok(()) => {
                    held_bytes.fetch_add(more, Ordering::Relaxed);
                }
                Err(over) => self.over = Some(over),
            }
        }
        match self.over {
            None => record,
            Some(_) => record.min(FLOOR_RECORD_MAX),
        }
    }

    async fn write(&mut self, header: Header, data: Bytes) {
        if let Err(error) = self.make_room(header) {
            return self.count(header, Err(error));
        }
        let (file, at) = (Arc::clone(&self.place.file), self.place.len);
        if self.at_once + header.size() <= limits::JOURNAL_AT_ONCE_BYTES {
            self.at_once += header.size();
            let result = write_record(&file, at, header, &data);
            return self.count(header, result);
        }
        let thread = tokio::task::spawn_blocking(move || write_record(&file, at, header, &data));
        self.pending = Some((header, thread));
        self.flush().await;
    }

    /// Waits for a write in progress on another thread. Cancel-safe.
    pub async fn flush(&mut self) {
        let Some((header, thread)) = &mut self.pending else { return };
        let (header, result) = (*header, thread.await);
        self.pending = None;
        self.count(header, result.unwrap_or_else(|error| Err(io::Error::other(error))));
    }

    /// Counts a record as written or dropped, and notifies all watchers.
    fn count(&mut self, header: Header, result: io::Result<()>) {
        let (stream, place) = (header.stream, &mut self.place);
        let before = of(&place.written, stream);
        *of_mut(&mut place.written, stream) = header.end();
        *of_mut(&mut place.dropped, stream) += header.offset - before;
        match result {
            Ok(()) => {
                place.len += header.size();
                place.disk_bytes += header.size();
                if let Some(tail) = place.tails.back_mut() {
                    *of_mut(&mut tail.kept, stream) += u64::from(header.len);
                    tail.len = place.len;
                }
            }
            // The next record overwrites the possibly written part of this one.
            Err(error) => {
                *of_mut(&mut place.dropped, stream) += u64::from(header.len);
                self.fault.get_or_insert_with(|| error.to_string());
            }
        }
        self.tell(None);
    }

    fn tell(&self, end: Option<Arc<ExecEnd>>) {
        let progress = Progress { end, ..self.place.progress() };
        self.journal.progress.send_replace(progress);
    }

    /// Starts the next segment if this one is full.
    fn make_room(&mut self, header: Header) -> io::Result<()> {
        let max_bytes = self.room.limits().max_bytes_per_exec;
        let tail = max_bytes / TAIL_SHARE;
        let max = match (self.place.segment, self.over) {
            (0, None) => max_bytes - u64::from(TAILS_KEPT) * tail,
            (0, Some(_)) => 0,
            (_, None) => tail,
            (_, Some(_)) => FLOOR_TAIL,
        };
        let is_new = self.place.segment > 0 && self.place.len <= cover::TAIL_MAGIC.len() as u64;
        if self.place.len + header.size() <= max || is_new {
            return Ok(());
        }
        let next = self.place.segment + 1;
        let file = private_file().create(true).truncate(true).open(self.journal.segment(next))?;
        file.write_all_at(cover::TAIL_MAGIC, 0)?;
        self.place.file = Arc::new(file);
        self.place.segment = next;
        self.place.len = cover::TAIL_MAGIC.len() as u64;
        self.place.disk_bytes += self.place.len;
        self.place.tails.push_back(Tail { len: self.place.len, ..Tail::default() });
        self.drop_tail(next);
        Ok(())
    }

    /// Removes the oldest tail. Current readers have it open.
    fn drop_tail(&mut self, newest: u32) {
        let Some(oldest) = newest.checked_sub(TAILS_KEPT).filter(|oldest| *oldest > 0) else {
            return;
        };
        if let Some(lost) = self.place.tails.pop_front() {
            self.place.dropped.stdout += lost.kept.stdout;
            self.place.dropped.stderr += lost.kept.stderr;
            self.place.disk_bytes -= lost.len;
            if let Some(over) = self.over {
                self.fault.get_or_insert_with(|| over.to_string());
            }
        }
        // Its bytes count as dropped whether or not the file can be removed.
        if let Err(error) = remove_if_there(&self.journal.segment(oldest)) {
            tracing::warn!(exec = %self.journal.id, %error, "cannot remove a part of a journal");
        }
    }

    /// Writes and publishes the end: the exec's own, and what could not be kept of its output. Everything appended must
    /// be flushed.
    pub fn end(self, mut end: ExecEnd) -> Arc<ExecEnd> {
        debug_assert!(self.pending.is_none(), "output is flushed before the end is written");
        end.error = with_fault(end.error, self.fault.as_deref());
        (end.written, end.dropped) = (self.place.written, self.place.dropped);
        if let Err(error) = cover::write_end(&self.head, &end) {
            tracing::error!(exec = %self.journal.id, %error, "cannot write the end of an exec");
            let fault = format!("its end is not on disk: {error}");
            end.error = with_fault(end.error, Some(&fault));
        }
        self.room.give_back(&self.journal, self.place.disk_bytes);
        let end = Arc::new(end);
        self.tell(Some(Arc::clone(&end)));
        end
    }
}

pub(super) fn with_fault(error: Option<String>, fault: Option<&str>) -> Option<String> {
    let fault = fault.map(|fault| format!("the journal is incomplete: {fault}"));
    match (error, fault) {
        (Some(error), Some(fault)) => Some(format!("{error}; {fault}")),
        (error, fault) => error.or(fault),
    }
}

/// Options for a private file.
pub(super) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

pub(super) fn remove_if_there(path: &std::path::Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// One call for most records: the header and the bytes together.
fn write_record(file: &File, at: u64, header: Header, data: &[u8]) -> io::Result<()> {
    let head = header.encode();
    let parts = [io::IoSlice::new(&head), io::IoSlice::new(data)];
    let written = rustix::io::retry_on_intr(|| rustix::io::pwritev(file, &parts, at))?;
    if written == HEADER_LEN + data.len() {
        return Ok(());
    }
    // A short write: retrying writes the rest, or reveals the reason.
    let mut whole = head.to_vec();
    whole.extend_from_slice(data);
    file.write_all_at(&whole[written..], at + written as u64)
}
