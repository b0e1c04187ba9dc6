//! The journals of one sandbox: which there are, and which have to go when there are too many.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use super::recover::{self, Read, Unfinished};
use super::writer::{Place, Writer, private_file, remove_if_there};
use super::{Description, Journal, JournalLimits, Keep, cover, segment_path};
use sandkeep_core::ExecId;
use sandkeep_home::names;

/// When there are too many, one part of this many goes at once: so removing costs little for each.
const REMOVED_SHARE: u64 = 16;

pub struct JournalIndex {
    dir: Arc<Path>,
    limits: JournalLimits,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    known: HashMap<ExecId, Book>,
    /// Those that have ended and need not stay, the oldest end first.
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
    /// The journals in `dir`, which need not exist: it is made for the first.
    pub fn new(dir: &Path, limits: JournalLimits) -> Self {
        Self { dir: Arc::from(dir), limits, books: Mutex::default() }
    }

    pub fn limits(&self) -> JournalLimits {
        self.limits
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing panics between two changes that belong together.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a journal: from here on a crash leaves a trace of the exec. Blocks for some microseconds.
    pub fn begin(&self, description: &Description) -> io::Result<Writer> {
        let id = &description.exec_id;
        let cover = cover::compose(description);
        let head = Arc::new(self.make(id)?);
        if let Err(error) = head.write_all_at(&cover, 0) {
            // What is left of it would be taken for an exec that never began, which it is.
            let _ = remove_if_there(&segment_path(&self.dir, id, 0));
            return Err(error);
        }
        let place = Place::first(&head, cover.len() as u64);
        let journal = Journal::new(Arc::clone(&self.dir), id.clone(), place.progress());
        let journal = Arc::new(journal);
        self.put(Arc::clone(&journal), description);
        Ok(Writer::new(journal, head, place, self.limits.max_bytes_per_exec))
    }

    fn make(&self, id: &ExecId) -> io::Result<File> {
        let path = segment_path(&self.dir, id, 0);
        let make = || private_file().create_new(true).open(&path);
        match make() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Only this directory: a home that is being removed must not come back.
                match DirBuilder::new().mode(0o700).create(&self.dir) {
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

    /// Reads what an earlier daemon left; returns the execs that have no end yet. Blocks.
    pub fn load(&self) -> io::Result<Vec<Unfinished>> {
        let mut unfinished = Vec::new();
        for (id, tails) in journals_in(&self.dir)?.journals {
            match recover::read(&self.dir, &id, &tails, self.limits.max_bytes_per_exec) {
                Ok(Read::Ended { journal, description }) => {
                    self.put(journal, &description);
                    self.count(&id);
                }
                Ok(Read::Unfinished(exec)) => {
                    self.put(Arc::clone(exec.writer.journal()), &exec.description);
                    unfinished.push(*exec);
                }
                Ok(Read::Nothing) => self.remove_files(&id, &tails),
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

    /// Those of processes, the oldest first.
    pub fn processes(&self) -> Vec<Arc<Journal>> {
        self.sorted(Book::is_process)
    }

    /// Those of all others, the oldest first.
    pub fn commands(&self) -> Vec<Arc<Journal>> {
        self.sorted(|book| !book.is_process())
    }

    /// All journals, the oldest exec first.
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

    /// An exec has ended: from now on its journal may have to go. `true`: some have to, now.
    pub fn count(&self, id: &ExecId) -> bool {
        let mut books = self.books();
        let Some(book) = books.known.get(id) else { return false };
        let progress = book.journal.progress();
        let (Keep::AmongTheLast, Some(end)) = (&book.keep, progress.end) else { return false };
        if books.ended.insert((end.ended_at, id.clone())) {
            books.ended_bytes += progress.disk_bytes;
        }
        books.ended.len() as u64 > self.limits.max_execs
            || books.ended_bytes > self.limits.max_bytes
    }

    /// Removes the oldest of those that have ended, until few and small enough are left. Blocks.
    pub fn tidy(&self) {
        let removed = self.books().take_oldest(&self.limits);
        for journal in removed {
            let newest = journal.progress.borrow().segment;
            let tails: Vec<u32> = (newest.saturating_sub(1).max(1)..=newest).collect();
            self.remove_files(journal.id(), &tails);
        }
    }

    /// Takes back a journal whose exec never began.
    pub fn forget(&self, writer: Writer) {
        let id = writer.journal().id().clone();
        self.books().known.remove(&id);
        self.remove_files(&id, &[]);
    }

    /// The head goes last: without it nobody would know whose the tails are.
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
        let few = match self.ended.len() as u64 > limits.max_execs {
            true => limits.max_execs - limits.max_execs / REMOVED_SHARE,
            false => limits.max_execs,
        };
        while self.ended.len() as u64 > few || self.ended_bytes > limits.max_bytes {
            let Some((_, id)) = self.ended.pop_first() else { break };
            let Some(book) = self.known.remove(&id) else { continue };
            self.ended_bytes -= book.journal.progress.borrow().disk_bytes;
            removed.push(book.journal);
        }
        removed
    }
}

/// What is in a directory of journals.
#[derive(Debug, Default)]
pub struct Found {
    /// Each exec, and the numbers of its tails in order.
    pub journals: BTreeMap<ExecId, Vec<u32>>,
    /// Names that are no journal's, and tails without a head.
    pub strange: Vec<String>,
}

/// Looks at a directory of journals; none is in one that is not there.
pub fn journals_in(dir: &Path) -> io::Result<Found> {
    let mut found = Found::default();
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
