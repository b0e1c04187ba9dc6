//! Reading the log: always from the files, so that a reader who is behind and one who follows are the same, and between
//! the two nothing is missing and nothing comes twice. A slow reader holds nobody up; if it is so slow that a file is
//! removed before it was read, it is told about the gap.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{EventLog, Segment, segment};
use sandkeep_core::event::{Event, EventSeq};
use sandkeep_core::limits;

/// What a reader of the log gets.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivery {
    Event(Box<Event>),
    /// The events after `after` and before `oldest` are not kept any more.
    Gap {
        after: EventSeq,
        oldest: EventSeq,
    },
}

/// A place in the log. Reading blocks.
pub(crate) struct Cursor {
    /// Everything up to this one has been read.
    after: EventSeq,
    open: Option<OpenSegment>,
}

struct OpenSegment {
    ordinal: u64,
    file: File,
    /// Of the next line.
    offset: u64,
}

impl Cursor {
    pub fn new(after: EventSeq) -> Self {
        Self { after, open: None }
    }

    /// Everything up to this one has been read.
    pub fn after(&self) -> EventSeq {
        self.after
    }

    /// The next events, a bounded number of them; none if all have been read.
    pub fn read(&mut self, log: &EventLog) -> io::Result<Vec<Delivery>> {
        loop {
            let Some(open) = &mut self.open else {
                let found = log.writer().segment_after(self.after);
                match found.and_then(|segment| OpenSegment::segment(log, segment)) {
                    Ok(open) => self.open = Some(open),
                    Err(NotKept::Gap { oldest }) => return Ok(vec![self.skip_to(oldest)]),
                    Err(NotKept::Io(error)) => return Err(error),
                }
                continue;
            };
            let Extent { end, sealed } = log.writer().extent(open.ordinal);
            let lines = open.lines(end)?;
            if !lines.is_empty() {
                let new = lines.into_iter().filter(|line| line.seq > self.after);
                let (mut last, mut events) = (self.after, Vec::new());
                for line in new {
                    last = line.seq;
                    events.extend(line.event.map(|event| Delivery::Event(Box::new(event))));
                }
                self.after = last;
                if !events.is_empty() {
                    return Ok(events);
                }
                continue;
            }
            if !sealed {
                return Ok(Vec::new());
            }
            let next = log.writer().segment(open.ordinal + 1);
            match next.and_then(|segment| OpenSegment::segment(log, segment)) {
                Ok(next) => self.open = Some(next),
                Err(NotKept::Gap { oldest }) => return Ok(vec![self.skip_to(oldest)]),
                Err(NotKept::Io(error)) => return Err(error),
            }
        }
    }

    fn skip_to(&mut self, oldest: EventSeq) -> Delivery {
        let after = self.after;
        self.open = None;
        self.after = EventSeq::new(oldest.get() - 1);
        Delivery::Gap { after, oldest }
    }
}

enum NotKept {
    Gap { oldest: EventSeq },
    Io(io::Error),
}

/// How far a file may be read.
struct Extent {
    end: u64,
    /// Nothing more will be written to it.
    sealed: bool,
}

impl super::Writer {
    fn oldest(&self) -> EventSeq {
        self.segments.front().map_or(self.next, |segment| segment.first)
    }

    /// The file in which the event after this one is, if it is there already.
    fn segment_after(&self, after: EventSeq) -> Result<Segment, NotKept> {
        let holds = |segment: &&Segment| segment.first <= after.plus(1);
        let found = self.segments.iter().rev().find(holds).copied();
        found.ok_or(NotKept::Gap { oldest: self.oldest() })
    }

    fn segment(&self, ordinal: u64) -> Result<Segment, NotKept> {
        match self.segments.iter().find(|segment| segment.ordinal >= ordinal) {
            Some(found) if found.ordinal == ordinal => Ok(*found),
            later => Err(NotKept::Gap { oldest: later.map_or(self.next, |later| later.first) }),
        }
    }

    /// A file is not there. Somebody else may have removed it; one that is written to must be there.
    fn missing(&mut self, segment: Segment, error: io::Error) -> NotKept {
        if self.segments.back().is_some_and(|current| current.ordinal == segment.ordinal) {
            return NotKept::Io(error);
        }
        self.segments.retain(|kept| kept.ordinal != segment.ordinal);
        match self.segment(segment.ordinal) {
            Err(gap) => gap,
            Ok(_) => NotKept::Io(error),
        }
    }

    /// One that was removed meanwhile can still be read to its end.
    fn extent(&self, ordinal: u64) -> Extent {
        match self.segments.back() {
            Some(current) if current.ordinal == ordinal => Extent { end: self.len, sealed: false },
            Some(_) | None => Extent { end: u64::MAX, sealed: true },
        }
    }
}

impl OpenSegment {
    fn segment(log: &EventLog, segment: Segment) -> Result<Self, NotKept> {
        match File::open(segment::path(&log.dir, segment.first)) {
            Ok(file) => Ok(Self { ordinal: segment.ordinal, file, offset: 0 }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(log.writer().missing(segment, error))
            }
            Err(error) => Err(NotKept::Io(error)),
        }
    }

    /// The next whole lines before `end`; none if all have been read. Lines after a damaged one are not read.
    fn lines(&mut self, end: u64) -> io::Result<Vec<segment::Line>> {
        loop {
            let before = self.offset;
            let lines = self.some_lines(end)?;
            // After the header alone there may be more: the first line can be longer than what was read with it.
            if !lines.is_empty() || self.offset == before {
                return Ok(lines);
            }
        }
    }

    fn some_lines(&mut self, end: u64) -> io::Result<Vec<segment::Line>> {
        let mut bytes = Vec::new();
        let mut wanted = limits::EVENTS_READ_BYTES;
        // A line may be longer than what is read at a time.
        while !bytes.contains(&b'\n') {
            let left = end.saturating_sub(self.offset + bytes.len() as u64);
            let wanted_now = wanted.min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = self.append_from(&mut bytes, wanted_now)?;
            if read == 0 {
                return Ok(Vec::new());
            }
            wanted = wanted.saturating_mul(2);
        }
        let mut lines = Vec::new();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_header = self.offset == 0 && segment::header(line).is_some();
            match segment::parse(line) {
                Some(parsed) => lines.push(parsed),
                None if is_header => {}
                None => break,
            }
            self.offset += line.len() as u64;
        }
        Ok(lines)
    }

    fn append_from(&self, bytes: &mut Vec<u8>, wanted: usize) -> io::Result<usize> {
        let begin = bytes.len();
        bytes.resize(begin + wanted, 0);
        let read = self.file.read_at(&mut bytes[begin..], self.offset + begin as u64)?;
        bytes.truncate(begin + read);
        Ok(read)
    }
}

/// Follows the log.
pub struct Subscription {
    log: Arc<EventLog>,
    last: watch::Receiver<EventSeq>,
    /// Everything up to this one has been read.
    after: EventSeq,
    /// `None` while a thread reads.
    cursor: Option<Cursor>,
    /// The thread that reads. Its caller may have left; what it reads is not lost.
    under_way: Option<JoinHandle<(Cursor, io::Result<Vec<Delivery>>)>>,
    read: VecDeque<Delivery>,
    /// Everything up to this one has been handed over, or is in no file.
    position: EventSeq,
}

impl Delivery {
    /// Where a reader is after this.
    pub fn position(&self) -> EventSeq {
        match self {
            Self::Event(event) => event.seq,
            Self::Gap { oldest, .. } => EventSeq::new(oldest.get() - 1),
        }
    }
}

impl Subscription {
    pub(super) fn new(log: &Arc<EventLog>, after: EventSeq) -> Self {
        let (log, last) = (Arc::clone(log), log.watch_last());
        let (cursor, under_way, read) = (None, None, VecDeque::new());
        Self { log, last, after, cursor, under_way, read, position: after }
    }

    /// Where a reader that continues later has to begin: everything up to this one has been handed over.
    pub fn position(&self) -> EventSeq {
        self.position
    }

    /// The next event, or that some are missing; `None` if all events that there are have been read. Cancel-safe.
    pub async fn poll(&mut self) -> io::Result<Option<Delivery>> {
        if self.read.is_empty() {
            self.read_more().await?;
        }
        let next = self.read.pop_front();
        match &next {
            Some(delivery) => self.position = delivery.position(),
            None => self.position = self.after,
        }
        Ok(next)
    }

    /// The next event, or that some are missing; waits for one. Cancel-safe.
    pub async fn next(&mut self) -> io::Result<Delivery> {
        loop {
            // Before the files are read: an event that is added meanwhile wakes this reader.
            self.last.borrow_and_update();
            if let Some(delivery) = self.poll().await? {
                return Ok(delivery);
            }
            // It fails only without the log, which is held here.
            let _ = self.last.changed().await;
        }
    }

    /// Cancel-safe: a reader that is interrupted all the time, while each read takes long, gets on all the same.
    async fn read_more(&mut self) -> io::Result<()> {
        loop {
            let is_resumed = self.under_way.is_some();
            let under_way = self.under_way.get_or_insert_with(|| {
                let mut cursor = self.cursor.take().unwrap_or_else(|| Cursor::new(self.after));
                let log = Arc::clone(&self.log);
                tokio::task::spawn_blocking(move || {
                    let batch = cursor.read(&log);
                    (cursor, batch)
                })
            });
            let read = under_way.await;
            self.under_way = None;
            let (cursor, batch) = read.map_err(io::Error::other)?;
            self.after = cursor.after();
            self.cursor = Some(cursor);
            let batch = batch?;
            // It looked before this caller came: there may be more by now.
            if is_resumed && batch.is_empty() {
                continue;
            }
            self.read.extend(batch);
            return Ok(());
        }
    }
}
