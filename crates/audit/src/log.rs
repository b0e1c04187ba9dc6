//! Writing the log.
//!
//! ```text
//!   admit   space for one more record is allocated before anything is changed   (on_full = refuse)
//!   record  lock · catch up with other writers · what is owed · the record · the head
//!   tick    repeats that are due, expired files, sync
//! ```
//!
//! A full disk neither ends the daemon nor keeps it from starting: a log that cannot be opened is tried again with
//! every record. Records that could not be written are counted, and the log reports the gap as soon as there is space.

mod tail;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::chain::Hash;
use crate::files::{self, Files};
use crate::reader::Reader;
use crate::record::{Effect, Entry, GapReason, Outcome, Request};
use crate::repeats::Repeats;
use crate::share::Suppressed;
use sandkeep_core::limits;
use tail::Tail;

/// How large the log may be, and how old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub max_bytes: u64,
    pub max_age: Duration,
}

impl Bounds {
    fn segment_bytes(self) -> u64 {
        (self.max_bytes / limits::AUDIT_SEGMENTS_MIN).min(limits::AUDIT_SEGMENT_MAX_BYTES)
    }
}

/// What happens to changes while the log cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// They are refused; reads go on.
    Refuse,
    /// They go on. The missing records are counted and reported in the log.
    Continue,
}

/// Whether requests that only read are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    Skip,
    Record,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub bounds: Bounds,
    pub on_full: OnFull,
    pub reads: Reads,
    /// Counts records that could not be written.
    pub lost: Counter,
}

impl Default for Options {
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        Self {
            bounds: Bounds {
                max_bytes: limits::AUDIT_DEFAULT_MB * limits::MIB,
                max_age: Duration::from_secs(limits::AUDIT_DEFAULT_DAYS * DAY),
            },
            on_full: OnFull::Refuse,
            reads: Reads::Skip,
            lost: Counter::default(),
        }
    }
}

/// Why a record cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit log cannot be written: {problem}")]
pub struct Full {
    pub problem: String,
}

impl From<io::Error> for Full {
    fn from(error: io::Error) -> Self {
        Self { problem: error.to_string() }
    }
}

/// The newest record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub seq: u64,
    pub hash: Hash,
}

/// Who appends to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Begins files and removes expired ones.
    Daemon,
    /// Only appends, beside a daemon or without one.
    Beside,
}

/// Whose space a record takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    /// That of the request, which has a [`RecordSpace`].
    Promised,
    /// Its own: nothing of what was promised to others.
    Own,
}

/// The log of one data directory. All processes that append to it take turns.
pub struct AuditLog {
    files: Files,
    role: Role,
    options: Options,
    writer: Mutex<Writer>,
    repeats: Mutex<Repeats>,
    opened: Instant,
    last: watch::Sender<u64>,
    followers: Arc<Semaphore>,
}

#[derive(Default)]
struct Writer {
    /// `None` until it can be opened.
    tail: Option<Tail>,
    /// What is to be said before the next record.
    owed: VecDeque<Entry>,
    /// Records that could not be written since one could.
    lost: u64,
    /// Requests that were promised space.
    promised: u64,
    suppressed: Suppressed,
    suppressed_told_at: Duration,
}

/// Space for the record of one request.
pub struct RecordSpace {
    log: Option<Arc<AuditLog>>,
}

impl Drop for RecordSpace {
    fn drop(&mut self) {
        if let Some(log) = &self.log {
            log.writer().promised -= 1;
        }
    }
}

impl AuditLog {
    /// The log of a data directory, which the daemon has locked. If it cannot be opened now, it is tried again later.
    pub fn open(data: &Path, options: Options, version: &str) -> Arc<Self> {
        let log = Self::new(data, options, Role::Daemon);
        let started = Entry::Started { version: version.to_owned() };
        log.writer().owed.push_back(started);
        if let Err(error) = log.flush() {
            tracing::warn!(%error, "the audit log cannot be opened; it is tried again with each record");
        }
        Arc::new(log)
    }

    /// The same log, for a process beside the daemon or without one.
    pub fn beside(data: &Path) -> Self {
        Self::new(data, Options::default(), Role::Beside)
    }

    fn new(data: &Path, options: Options, role: Role) -> Self {
        Self {
            files: Files::of(data),
            role,
            options,
            writer: Mutex::default(),
            repeats: Mutex::default(),
            opened: Instant::now(),
            last: watch::Sender::new(0),
            followers: Arc::new(Semaphore::new(limits::AUDIT_FOLLOWERS_MAX)),
        }
    }

    /// It is held for a few small writes. Nothing panics meanwhile.
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn repeats(&self) -> MutexGuard<'_, Repeats> {
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a request that may change something. An error: it must not begin.
    pub fn admit(self: &Arc<Self>) -> Result<RecordSpace, Full> {
        if self.options.on_full == OnFull::Continue {
            return Ok(RecordSpace { log: None });
        }
        let mut writer = self.writer();
        self.with_tail(&mut writer, |writer, tail| {
            let records = writer.promised + 1;
            tail.allocate(records * limits::AUDIT_RECORD_MAX_BYTES)
        })?;
        writer.promised += 1;
        Ok(RecordSpace { log: Some(Arc::clone(self)) })
    }

    /// Writes a request down, or counts it with others. It survives the death of this process when this returns.
    pub fn record(&self, request: Request) -> Result<(), Full> {
        let request = Request { count: request.count.max(1), ..request.clipped() };
        if request.is_single() {
            return self.write(
                &mut self.writer(),
                Entry::Request(Box::new(request)),
                Space::Promised,
            );
        }
        let is_plain_read = request.effect == Effect::Reads && request.outcome != Outcome::Refused;
        if is_plain_read && self.options.reads == Reads::Skip {
            return Ok(());
        }
        let first = self.repeats().note(request, self.opened.elapsed());
        first.map_or(Ok(()), |request| self.append_shared(request))
    }

    /// One that counts against the share of its organization.
    fn append_shared(&self, request: Request) -> Result<(), Full> {
        let segment_bytes = self.options.bounds.segment_bytes();
        let mut writer = self.writer();
        let has_room =
            writer.tail.as_ref().is_none_or(|tail| tail.shares.has_room(&request, segment_bytes));
        if !has_room {
            writer.suppressed.add(&request);
            return Ok(());
        }
        self.write(&mut writer, Entry::Request(Box::new(request)), Space::Own)
    }

    fn write(&self, writer: &mut Writer, entry: Entry, space: Space) -> Result<(), Full> {
        let written = self.with_tail(writer, |writer, tail| {
            let needed = writer.promised * limits::AUDIT_RECORD_MAX_BYTES;
            let is_full = tail.len() >= self.options.bounds.segment_bytes() || tail.is_old();
            if self.role == Role::Daemon && is_full {
                // If there is no space for a new file, this one still has what was promised.
                if let Err(error) = tail.rotate(&self.files, needed) {
                    tracing::debug!(%error, "no new file of the audit log can be begun");
                } else {
                    writer.owed.extend(writer.suppressed.take_all());
                    self.expire(tail);
                }
            }
            if space == Space::Own && needed > 0 {
                tail.allocate(needed + limits::AUDIT_RECORD_MAX_BYTES)?;
            }
            tail.append(Timestamp::now(), &entry)
        });
        match written {
            Ok(seq) => {
                self.last.send_replace(seq);
                Ok(())
            }
            Err(full) => {
                if writer.lost == 0 {
                    tracing::error!("{full}; records are missing from now on");
                }
                writer.lost += 1;
                self.options.lost.inc();
                Err(full)
            }
        }
    }

    /// Works on the tail under the lock: opened if it was not, in step with other writers, and with nothing owed.
    fn with_tail<T>(
        &self,
        writer: &mut Writer,
        work: impl FnOnce(&mut Writer, &mut Tail) -> io::Result<T>,
    ) -> Result<T, Full> {
        let mut tail = match writer.tail.take() {
            Some(tail) => tail,
            None => self.open_tail(writer)?,
        };
        let lock_file = Arc::clone(&tail.lock);
        let done = (|| {
            let _locked = files::lock(&lock_file)?;
            if !tail.catch_up()? {
                let opened = Tail::open(&self.files, Arc::clone(&lock_file), self.role)?;
                tail = opened.tail;
                writer.owed.extend(opened.noticed);
            }
            Self::settle(writer, &mut tail)?;
            work(writer, &mut tail)
        })();
        writer.tail = Some(tail);
        Ok(done?)
    }

    fn open_tail(&self, writer: &mut Writer) -> io::Result<Tail> {
        self.files.make()?;
        let lock_file = Arc::new(self.files.open_lock()?);
        let _locked = files::lock(&lock_file)?;
        let opened = Tail::open(&self.files, Arc::clone(&lock_file), self.role)?;
        for gap in opened.noticed.into_iter().rev() {
            writer.owed.push_front(gap);
        }
        Ok(opened.tail)
    }

    /// Says what is owed, in its order. It waits if there is only the space that was promised to requests.
    fn settle(writer: &mut Writer, tail: &mut Tail) -> io::Result<()> {
        let promised = writer.promised * limits::AUDIT_RECORD_MAX_BYTES;
        if promised > 0 && tail.allocate(promised + limits::AUDIT_RECORD_MAX_BYTES).is_err() {
            return Ok(());
        }
        if writer.lost > 0 {
            let lost = std::mem::take(&mut writer.lost);
            writer.owed.push_back(Entry::Gap { reason: GapReason::Full, records: lost });
        }
        while let Some(entry) = writer.owed.front() {
            tail.append(Timestamp::now(), entry)?;
            writer.owed.pop_front();
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Full> {
        let mut writer = self.writer();
        let seq = self.with_tail(&mut writer, |_, tail| Ok(tail.head().seq))?;
        self.last.send_replace(seq);
        Ok(())
    }

    /// Removes what is over the bounds, after it was said. A removal that fails is tried again the next time.
    fn expire(&self, tail: &mut Tail) {
        if let Err(error) = tail.expire(&self.files, self.options.bounds) {
            tracing::warn!(%error, "expired files of the audit log cannot be removed");
        }
    }

    /// Work that is due every [`limits::AUDIT_TICK`]. Blocks.
    pub fn tick(&self) {
        let now = self.opened.elapsed();
        let due = self.repeats().due(now);
        for request in due {
            // It was counted as lost.
            let _ = self.append_shared(request);
        }
        let mut writer = self.writer();
        let every = limits::AUDIT_SUPPRESSED_TOLD_EVERY;
        if now.saturating_sub(writer.suppressed_told_at) >= every {
            writer.suppressed_told_at = now;
            let suppressed = writer.suppressed.take_all();
            writer.owed.extend(suppressed);
            let expired = self.with_tail(&mut writer, |_, tail| {
                self.expire(tail);
                Ok(tail.head().seq)
            });
            if let Ok(seq) = expired {
                self.last.send_replace(seq);
            }
        }
        let file = writer.tail.as_mut().and_then(Tail::unsynced);
        drop(writer);
        if let Some(Err(error)) = file.as_deref().map(File::sync_data) {
            tracing::warn!(%error, "the audit log cannot be synced");
        }
    }

    /// Runs [`Self::tick`] for ever.
    pub async fn keep(self: Arc<Self>) {
        let mut every = tokio::time::interval(limits::AUDIT_TICK);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let log = Arc::clone(&self);
            let _ = tokio::task::spawn_blocking(move || log.tick()).await;
        }
    }

    /// Writes down everything that was only counted so far. Blocks.
    pub fn close(&self) {
        let counted = self.repeats().due(Duration::MAX);
        for request in counted {
            let _ = self.append_shared(request);
        }
        let mut writer = self.writer();
        let suppressed = writer.suppressed.take_all();
        writer.owed.extend(suppressed);
        let closed = self.with_tail(&mut writer, |_, tail| tail.close());
        if let Err(error) = closed {
            tracing::warn!("{error}");
        }
    }

    pub fn refuses_when_full(&self) -> bool {
        self.options.on_full == OnFull::Refuse
    }

    /// A place among those who follow the log through the API; `None` if all are taken.
    pub fn follow(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.followers).try_acquire_owned().ok()
    }

    /// The newest record; `None` if there is none yet.
    pub fn head(&self) -> Result<Option<Head>, Full> {
        let mut writer = self.writer();
        let head = self.with_tail(&mut writer, |_, tail| Ok(tail.head()))?;
        Ok(Some(head).filter(|head| head.seq > 0))
    }

    /// Reads records after this one.
    pub fn read_after(&self, after: u64) -> Reader {
        Reader::new(self.files.clone(), after)
    }

    /// Changes with every record of this process.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}
