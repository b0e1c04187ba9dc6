//! The log of events of this node: append-only files in `<data>/events`, written by this daemon alone.
//!
//! ```text
//!   append ──▶ write(2) ──▶ 00000000000000000001.log  00000000000000031874.log   the oldest goes when there are too many
//!      │                            ▲
//!      └── a number ──▶ subscribers ┘ read the files, whether they are behind or follow
//! ```
//!
//! An event is in the page cache when `append` returns, so it survives the daemon's death; nothing is synced, so a loss
//! of power may take the last half minute. Numbers are never used twice: after a reboot they go on so much higher that
//! no event which was lost can have had one of them.
//!
//! A full disk fails nobody. The oldest files make room first. If none is left to go, the event is lost: it is counted,
//! and its number stays missing in the log, which tells every reader.

mod consumer;
mod reader;
mod segment;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::Broker;
use sandkeep_core::api::KeyInfo;
use sandkeep_core::event::{Event, EventKind, EventSeq, Subject};
use sandkeep_core::{ExecId, SandboxId, limits};
use sandkeep_home::make_directory;

pub use consumer::{Consumer, StartAt};
pub use reader::{Delivery, Subscription};

pub(crate) use reader::Cursor;

/// Where the log is, in the data directory.
pub(crate) const EVENTS: &str = "events";

/// How large the log may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogBounds {
    pub segment_bytes: u64,
    pub total_bytes: u64,
}

impl Default for LogBounds {
    fn default() -> Self {
        Self {
            segment_bytes: limits::EVENT_SEGMENT_MAX_BYTES,
            total_bytes: limits::EVENTS_MAX_BYTES,
        }
    }
}

pub(crate) struct EventLog {
    dir: PathBuf,
    boot_id: String,
    bounds: LogBounds,
    writer: Mutex<Writer>,
    /// The last event there is.
    last: watch::Sender<EventSeq>,
    /// The last one that there was when this daemon opened it.
    opened_at: EventSeq,
    lost: Counter,
}

struct Writer {
    /// The oldest first, the one that is written to last.
    segments: VecDeque<Segment>,
    file: File,
    /// How much of the file is whole events.
    len: u64,
    next: EventSeq,
    /// How many events were lost since one could last be written.
    lost: u64,
}

/// One file of the log. Those that follow each other have consecutive ordinals, whatever their numbers are.
#[derive(Clone, Copy, Debug)]
struct Segment {
    ordinal: u64,
    first: EventSeq,
    bytes: u64,
}

/// What the newest part of the log tells about verbs that a crash may have cut off right after their event.
#[derive(Default)]
pub(crate) struct Revisited {
    pub ended_execs: HashSet<ExecId>,
    pub destroyed: HashSet<SandboxId>,
}

impl EventLog {
    /// Opens the log of a data directory, which is locked. Cuts off an event that a crash left half-written.
    pub fn open(data: &Path, boot_id: &str, bounds: LogBounds, lost: Counter) -> io::Result<Self> {
        let dir = data.join(EVENTS);
        make_directory(&dir)?;
        let mut segments: VecDeque<Segment> = VecDeque::new();
        for (ordinal, first) in (0..).zip(segment::list(&dir)?) {
            let bytes = fs::metadata(segment::path(&dir, first))?.len();
            segments.push_back(Segment { ordinal, first, bytes });
        }
        // A file whose header never reached the disk still says by its name how far the numbers had come.
        let highest = segments.back().map(|last| last.first).filter(|first| first.get() > 1);
        let mut newest = None;
        while let Some(last) = segments.back_mut() {
            let path = segment::path(&dir, last.first);
            if let Some(scanned) = segment::scan(&path, last.first)? {
                last.bytes = scanned.len;
                newest = Some(scanned);
                break;
            }
            // It was made and never written to.
            fs::remove_file(&path)?;
            segments.pop_back();
        }
        let (file, len, next) = match newest {
            Some(found) if found.boot_id == boot_id => {
                found.file.set_len(found.len)?;
                (found.file, found.len, found.last.plus(1))
            }
            other => {
                // No more events than bytes can have been lost with the power.
                let used = other.map(|found| found.last.plus(1)).max(highest);
                let next = used.map_or(EventSeq::new(1), |used| used.plus(bounds.total_bytes));
                let (file, len) = segment::begin(&dir, next, boot_id)?;
                let ordinal = segments.back().map_or(0, |last| last.ordinal + 1);
                segments.push_back(Segment { ordinal, first: next, bytes: len });
                (file, len, next)
            }
        };
        let writer = Mutex::new(Writer { segments, file, len, next, lost: 0 });
        let opened_at = EventSeq::new(next.get() - 1);
        let last = watch::Sender::new(opened_at);
        Ok(Self { dir, boot_id: boot_id.to_owned(), bounds, writer, last, opened_at, lost })
    }

    /// The lock is held for one small write, or for the making and removing of a file, and nothing panics meanwhile.
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. It is there for every reader, and for the next daemon, when this returns. Blocks for some
    /// microseconds.
    pub fn append(&self, at: Timestamp, subject: &Subject, kind: &EventKind) -> EventSeq {
        let body = segment::encode(at, subject, kind);
        let mut writer = self.writer();
        let seq = writer.next;
        writer.next = seq.plus(1);
        let line = segment::line(seq, &body);
        match self.write(&mut writer, seq, &line) {
            Ok(()) if writer.lost > 0 => {
                info!(lost = writer.lost, "events can be written again");
                writer.lost = 0;
            }
            Ok(()) => {}
            Err(error) => {
                if writer.lost == 0 {
                    warn!(%error, "cannot write an event; it is lost, and so may the next ones be");
                }
                writer.lost += 1;
                self.lost.inc();
            }
        }
        self.last.send_replace(seq);
        seq
    }

    fn write(&self, writer: &mut Writer, seq: EventSeq, line: &[u8]) -> io::Result<()> {
        loop {
            let written = self.write_once(writer, seq, line);
            let is_full = written.as_ref().is_err_and(|error| {
                matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            });
            if !(is_full && self.remove_oldest(writer)) {
                return written;
            }
        }
    }

    /// The next write overwrites the remains of a failed one.
    fn write_once(&self, writer: &mut Writer, seq: EventSeq, line: &[u8]) -> io::Result<()> {
        if writer.len >= self.bounds.segment_bytes {
            self.rotate(writer, seq)?;
        }
        writer.file.write_all_at(line, writer.len)?;
        writer.len += line.len() as u64;
        if let Some(current) = writer.segments.back_mut() {
            current.bytes = writer.len;
        }
        Ok(())
    }

    fn rotate(&self, writer: &mut Writer, first: EventSeq) -> io::Result<()> {
        (writer.file, writer.len) = segment::begin(&self.dir, first, &self.boot_id)?;
        let ordinal = writer.segments.back().map_or(0, |last| last.ordinal + 1);
        writer.segments.push_back(Segment { ordinal, first, bytes: writer.len });
        let total =
            |writer: &Writer| -> u64 { writer.segments.iter().map(|segment| segment.bytes).sum() };
        while total(writer) + self.bounds.segment_bytes > self.bounds.total_bytes
            && self.remove_oldest(writer)
        {}
        Ok(())
    }

    /// `false` if there is none but the one that is written to.
    fn remove_oldest(&self, writer: &mut Writer) -> bool {
        if writer.segments.len() < 2 {
            return false;
        }
        let Some(oldest) = writer.segments.pop_front() else { return false };
        if let Err(error) = fs::remove_file(segment::path(&self.dir, oldest.first)) {
            warn!(%error, "cannot remove the oldest events; the next start tries again");
        }
        true
    }

    /// The last event there is.
    pub fn last(&self) -> EventSeq {
        *self.last.borrow()
    }

    /// A consumer that an earlier daemon had brought to this place goes on from here. A place that this log never came
    /// to is one of a log that was lost.
    pub fn place_of_earlier(&self, saved: EventSeq) -> EventSeq {
        if saved <= self.opened_at { saved } else { EventSeq::START }
    }

    pub fn watch_last(&self) -> watch::Receiver<EventSeq> {
        self.last.subscribe()
    }

    /// Events after this one, or after all that there are: first from the files, then as they come.
    pub fn subscribe(self: &Arc<Self>, after: Option<EventSeq>) -> Subscription {
        Subscription::new(self, after.unwrap_or_else(|| self.last()))
    }

    /// Reads the newest part of the log, at least one file of it if there is so much. Blocks.
    pub fn revisit(&self) -> io::Result<Revisited> {
        let first = self.writer().segments.iter().rev().nth(1).map(|segment| segment.first);
        let after = first.map_or(EventSeq::START, |first| EventSeq::new(first.get() - 1));
        let (mut cursor, mut revisited) = (Cursor::new(after), Revisited::default());
        loop {
            let batch = cursor.read(self)?;
            if batch.is_empty() {
                return Ok(revisited);
            }
            for delivery in batch {
                let Delivery::Event(event) = delivery else { continue };
                match event.kind {
                    EventKind::ExecEnded { exec, .. } => {
                        revisited.ended_execs.insert(exec);
                    }
                    EventKind::SandboxDestroyed { .. } => {
                        revisited.destroyed.extend(event.subject.sandbox);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// All events that a data directory holds, for somebody who only looks.
pub fn recorded(data: &Path) -> io::Result<Vec<Event>> {
    let dir = data.join(EVENTS);
    let mut events = Vec::new();
    for first in segment::list(&dir)? {
        let scanned = segment::scan(&segment::path(&dir, first), first)?;
        events.extend(scanned.into_iter().flat_map(|scanned| scanned.events));
    }
    Ok(events)
}

/// What was done about an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    Made,
    Revoked,
}

impl Broker {
    /// The random id of the data directory whose events these are.
    pub fn instance(&self) -> &str {
        self.shared.data.instance().as_str()
    }

    /// The last event there is.
    pub fn last_event(&self) -> EventSeq {
        self.shared.events.last()
    }

    /// A consumer of all events of this node whose position survives the daemon. `name` is a file name. There must be
    /// one consumer of a name at a time. Blocks for as long as a small file takes to be read.
    pub fn event_consumer(&self, name: &str, start: StartAt) -> io::Result<Consumer> {
        Consumer::open(&self.shared.events, self.shared.data.path(), name, start)
    }

    /// Tells a change of an API key. Doors keep the keys, and the log is the broker's.
    pub fn note_key(&self, info: &KeyInfo, change: KeyChange) {
        let Ok(owner) = info.clone().into_principal().owner(None) else { return };
        let kind = match change {
            KeyChange::Made => {
                EventKind::KeyCreated { key: info.id.clone(), scopes: info.scopes.clone() }
            }
            KeyChange::Revoked => EventKind::KeyRevoked { key: info.id.clone() },
        };
        self.shared.emit(&Subject { owner, sandbox: None }, &kind);
    }
}
