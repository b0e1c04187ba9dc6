//! The journals of one sandbox, and which to remove when there are too many.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use super::recover::{self, Read, Unfinished};
use super::writer::{WritePosition, Writer, private_file, remove_if_there};
use super::{Description, Journal, JournalLimits, Keep, cover, segment_path};
use sandkeep_core::ledger::{Over, Reservation};
use sandkeep_core::{ExecId, limits};
use sandkeep_home::names;

/// When there are too many, this fraction is removed at once, so that the cost per journal is low.
const REMOVED_SHARE: u64 = 16;

pub struct JournalIndex {
    room: Arc<JournalSpace>,
}

/// State shared by a sandbox's journals: their directory, and their disk space.
pub(super) struct JournalSpace {
    dir: Arc<Path>,
    limits: JournalLimits,
    /// Their total size on disk, and the reserved space of open ones.
    account: Reservation,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    known: HashMap<ExecId, Book>,
    /// Ended journals that may be removed, oldest end first.
    ended: BTreeSet<(Timestamp, ExecId)>,
    ended_bytes: u64,
}

struct Book {
    journal: Arc<Journal>,
    started_at: Timestamp,
    keep: Keep,
}

impl Book {
    fn is_process(&self) -> bool {
        matches!(self.keep, Keep::WithSandbox(_))
    }
}

impl JournalIndex {
    /// The journals in `dir`, which is created for the first one. Disk space is reserved from `account`; each sandbox
    /// has one.
    pub fn new(dir: &Path, bounds: JournalLimits, account: Reservation) -> Self {
        // Growing data leaves a share for new journals: that share comes on top.
        let grown = bounds.max_bytes.saturating_add(limits::JOURNAL_FLOOR_BYTES);
        let max_bytes = grown.saturating_add(grown / (limits::GROWTH_SPARE_SHARE - 1));
        let account = account.bounded(max_bytes);
        let room =
            JournalSpace { dir: Arc::from(dir), limits: bounds, account, books: Mutex::default() };
        Self { room: Arc::new(room) }
    }

    pub fn limits(&self) -> JournalLimits {
        self.room.limits
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.room.books()
    }

    /// Creates a journal: from here on a crash leaves a trace of the exec. Blocks for some microseconds. Without space,
    /// the error contains an [`Over`].
    pub fn begin(&self, description: &Description) -> io::Result<Writer> {
        let id = &description.exec_id;
        let cover = cover::compose(description);
        let held_bytes = cover.len() as u64 + limits::JOURNAL_FLOOR_BYTES;
        self.room.make_room(|account| account.take(held_bytes)).map_err(io::Error::other)?;
        let begun = self.make(id).and_then(|head| {
            // A remaining part would be taken for an exec that never started, which is correct.
            let written = head.write_all_at(&cover, 0);
            written.inspect_err(|_| drop(remove_if_there(&segment_path(&self.room.dir, id, 0))))?;
            Ok(Arc::new(head))
        });
        let head = begun.inspect_err(|_| self.room.account.give(held_bytes))?;
        let place = WritePosition::first(&head, cover.len() as u64);
        let dir = Arc::clone(&self.room.dir);
        let journal = Arc::new(Journal::new(dir, id.clone(), place.progress(), held_bytes));
        self.put(Arc::clone(&journal), description);
        Ok(Writer::new(&self.room, journal, head, place))
    }

    fn make(&self, id: &ExecId) -> io::Result<File> {
        let path = segment_path(&self.room.dir, id, 0);
        let make = || private_file().create_new(true).open(&path);
        match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Only this directory: a home that is being removed must not be recreated.
                match DirBuilder::new().mode(0o700).create(&self.room.dir) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                    Ok(()) | Err(_) => make(),
                }
            }
            made => made,
        }
    }

    fn put(&self, journal: Arc<Journal>, description: &Description) {
        let (started_at, keep) = (description.started_at, description.keep.clone());
        let id = description.exec_id.clone();
        self.books().known.insert(id, Book { journal, started_at, keep });
    }

    /// Reads what an earlier daemon left; returns the execs without an end. Blocks.
    pub fn load(&self) -> io::Result<Vec<Unfinished>> {
        let mut unfinished = Vec::new();
        for (id, tails) in journals_in(&self.room.dir)?.journals {
            match recover::read(&self.room, &id, &tails) {
                Ok(Read::Ended { journal, description }) => {
                    self.put(journal, &description);
                    self.count(&id);
                }
                Ok(Read::Unfinished(exec)) => {
                    self.put(Arc::clone(exec.writer.journal()), &exec.description);
                    unfinished.push(*exec);
                }
                Ok(Read::Nothing) => self.room.remove_files(&id, &tails),
                Err(error) => {
                    tracing::warn!(exec = %id, %error, "cannot read a journal; it is left alone");
                }
            }
        }
        self.tidy();
        Ok(unfinished)
    }

    pub fn find(&self, id: &ExecId) -> Option<Arc<Journal>> {
        self.books().known.get(id).map(|book| Arc::clone(&book.journal))
    }

    /// The journal of a process.
    pub fn process(&self, id: &ExecId) -> Option<Arc<Journal>> {
        let books = self.books();
        let book = books.known.get(id).filter(|book| book.is_process());
        book.map(|book| Arc::clone(&book.journal))
    }

    /// Those of processes, oldest first.
    pub fn processes(&self) -> Vec<Arc<Journal>> {
        self.sorted(Book::is_process)
    }

    /// Those of all other execs, oldest first.
    pub fn commands(&self) -> Vec<Arc<Journal>> {
        self.sorted(|book| !book.is_process())
    }

    /// All journals, oldest exec first.
    pub fn list(&self) -> Vec<Arc<Journal>> {
        self.sorted(|_| true)
    }

    fn sorted(&self, wanted: impl Fn(&Book) -> bool) -> Vec<Arc<Journal>> {
        let mut all: Vec<_> = {
            let books = self.books();
            let entry = |book: &Book| (book.started_at, Arc::clone(&book.journal));
            books.known.values().filter(|book| wanted(book)).map(entry).collect()
        };
        all.sort_by(|(a, one), (b, other)| (a, one.id()).cmp(&(b, other.id())));
        all.into_iter().map(|(_, journal)| journal).collect()
    }

    /// An exec has ended: from now on its journal may be removed. `true`: some must be removed now.
    pub fn count(&self, id: &ExecId) -> bool {
        let mut books = self.books();
        let Some(book) = books.known.get(id) else { return false };
        let progress = book.journal.progress();
        let (Keep::AmongTheLast, Some(end)) = (&book.keep, progress.end) else { return false };
        if books.ended.insert((end.ended_at, id.clone())) {
            books.ended_bytes += progress.disk_bytes;
        }
        books.ended.len() as u64 > self.room.limits.max_execs
            || books.ended_bytes > self.room.limits.max_bytes
    }

    /// Removes the oldest ended journals, until the rest is within the limits. Blocks.
    pub fn tidy(&self) {
        let removed = self.books().take_oldest(&self.room.limits);
        removed.iter().for_each(|journal| self.room.remove(journal));
    }

    /// Drops the oldest ended journal, in favour of other journals of the same owner. `false`: there was none. Blocks.
    pub fn give_way(&self) -> bool {
        self.room.give_way()
    }

    /// Removes a journal whose exec never started.
    pub fn forget(&self, writer: Writer) {
        let id = writer.journal().id().clone();
        self.books().known.remove(&id);
        self.room.give_back(writer.journal(), 0);
        self.room.remove_files(&id, &[]);
    }
}

impl JournalSpace {
    fn books(&self) -> MutexGuard<'_, Books> {
        // No code panics between two changes that belong together.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn dir(&self) -> &Arc<Path> {
        &self.dir
    }

    pub(super) fn limits(&self) -> &JournalLimits {
        &self.limits
    }

    pub(super) fn account(&self) -> &Reservation {
        &self.account
    }

    /// Reserves space. Ended journals are dropped in favour of running ones, oldest first.
    pub(super) fn make_room(
        &self,
        take: impl Fn(&Reservation) -> Result<(), Over>,
    ) -> Result<(), Over> {
        loop {
            match take(&self.account) {
                Err(over) if over.gives_way() && self.give_way() => {}
                taken => return taken,
            }
        }
    }

    /// An exec is dropped with everything that is kept of it, a process only with its output: its end stays.
    fn give_way(&self) -> bool {
        let mut books = self.books();
        if let Some(journal) = books.take_first() {
            drop(books);
            self.remove(&journal);
            return true;
        }
        let can_give = |book: &Book| book.journal.has_output() && book.journal.end().is_some();
        let oldest = books.known.values().filter(|book| book.is_process() && can_give(book));
        let oldest =
            oldest.min_by_key(|book| book.started_at).map(|book| Arc::clone(&book.journal));
        drop(books);
        let Some(journal) = oldest else { return false };
        match journal.drop_output() {
            Ok(left_bytes) => self.give_back(&journal, left_bytes),
            Err(error) => {
                tracing::warn!(exec = %journal.id(), %error, "cannot drop the output of a process");
                return false;
            }
        }
        true
    }

    fn remove(&self, journal: &Journal) {
        let progress = journal.progress();
        let newest = progress.segment;
        let tails: Vec<u32> = (newest.saturating_sub(1).max(1)..=newest).collect();
        self.remove_files(journal.id(), &tails);
        self.give_back(journal, 0);
    }

    /// A journal keeps so many bytes of the account. A second or late call gives nothing back.
    pub(super) fn give_back(&self, journal: &Journal, left_bytes: u64) {
        self.account.give(journal.let_go(left_bytes));
    }

    /// The head goes last: without it the tails could not be attributed.
    fn remove_files(&self, id: &ExecId, tails: &[u32]) {
        for segment in tails.iter().copied().chain([0]) {
            if let Err(error) = remove_if_there(&segment_path(&self.dir, id, segment)) {
                tracing::warn!(exec = %id, %error, "cannot remove a journal");
            }
        }
    }
}

impl Books {
    fn take_oldest(&mut self, limits: &JournalLimits) -> Vec<Arc<Journal>> {
        let mut removed = Vec::new();
        let few = if self.ended.len() as u64 > limits.max_execs {
            limits.max_execs - limits.max_execs / REMOVED_SHARE
        } else {
            limits.max_execs
        };
        while self.ended.len() as u64 > few || self.ended_bytes > limits.max_bytes {
            let Some(journal) = self.take_first() else { break };
            removed.push(journal);
        }
        removed
    }

    /// The one that ended first.
    fn take_first(&mut self) -> Option<Arc<Journal>> {
        loop {
            let (_, id) = self.ended.pop_first()?;
            if let Some(book) = self.known.remove(&id) {
                self.ended_bytes -= book.journal.progress.borrow().disk_bytes;
                return Some(book.journal);
            }
        }
    }
}

/// The content of a journal directory.
#[derive(Debug, Default)]
pub struct JournalListing {
    /// Each exec, and the numbers of its tails in order.
    pub journals: BTreeMap<ExecId, Vec<u32>>,
    /// Names that are not a journal's, and tails without a head.
    pub strange: Vec<String>,
}

/// Lists a journal directory; a missing one is empty.
pub fn journals_in(dir: &Path) -> io::Result<JournalListing> {
    let mut found = JournalListing::default();
    let mut tails: Vec<(ExecId, u32)> = Vec::new();
    for name in names(dir)? {
        match parse(&name) {
            Some((id, 0)) => drop(found.journals.insert(id, Vec::new())),
            Some(tail) => tails.push(tail),
            None => found.strange.push(name),
        }
    }
    tails.sort();
    for (id, number) in tails {
        match found.journals.get_mut(&id) {
            Some(numbers) => numbers.push(number),
            None => found.strange.push(format!("{id}.{number}")),
        }
    }
    Ok(found)
}

fn parse(name: &str) -> Option<(ExecId, u32)> {
    match name.split_once('.') {
        None => Some((name.parse().ok()?, 0)),
        Some((id, number)) => {
            let tail = number.parse().ok().filter(|tail| *tail > 0)?;
            Some((id.parse().ok()?, tail))
        }
    }
}
