//! Reading the log in order, beside whoever writes it.
//!
//! How far a file goes, and whether there is a next one, is looked up under the lock. So nothing is skipped when a file
//! is followed by another: whoever sees the next file sees the former one with its last record.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use jiff::Timestamp;

use crate::chain;
use crate::files::{Files, lock_shared};
use crate::record::{Entry, Record};
use sandkeep_core::limits;

/// Which records are wanted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// An organization, or an organization and a user: `acme` or `acme/ann`.
    pub owner: Option<String>,
}

impl Filter {
    pub fn takes(&self, record: &Record) -> bool {
        let Self { since, until, owner } = self;
        since.is_none_or(|since| record.at >= since)
            && until.is_none_or(|until| record.at < until)
            && owner.as_ref().is_none_or(|owner| is_by(record, owner))
    }
}

fn is_by(record: &Record, owner: &str) -> bool {
    match &record.entry {
        Entry::Request(request) => request.actor.as_ref().is_some_and(|actor| {
            actor.organization == owner || format!("{}/{}", actor.organization, actor.user) == owner
        }),
        Entry::Suppressed { organization, .. } => organization.as_deref() == Some(owner),
        // They tell why records may be missing.
        Entry::Started { .. } | Entry::Gap { .. } | Entry::Removed { .. } => true,
    }
}

/// A place in the log. Reading blocks.
pub struct Reader {
    files: Files,
    lock: Option<File>,
    /// Everything up to this one was read.
    after: u64,
    open: Option<Open>,
}

struct Open {
    first: u64,
    file: File,
    offset: u64,
}

impl Reader {
    /// Records after this one; 0 is from the beginning.
    pub fn open(data: &Path, after: u64) -> Self {
        Self::new(Files::of(data), after)
    }

    pub(crate) fn new(files: Files, after: u64) -> Self {
        Self { files, lock: None, after, open: None }
    }

    /// The next records, a bounded number of them; none if all were read.
    pub fn read(&mut self) -> io::Result<Vec<Record>> {
        if self.lock.is_none() {
            if !self.files.exist() {
                return Ok(Vec::new());
            }
            self.lock = Some(self.files.open_lock()?);
        }
        loop {
            let Some(end) = self.extent()? else { return Ok(Vec::new()) };
            let records = self.records(end)?;
            if !records.is_empty() {
                return Ok(records);
            }
        }
    }

    /// How far the file goes that is read now, or the next one if this one was read; `None` at the end of the log.
    fn extent(&mut self) -> io::Result<Option<u64>> {
        let Some(lock) = &self.lock else { return Ok(None) };
        let _locked = lock_shared(lock)?;
        if let Some(open) = &self.open {
            let len = open.file.metadata()?.len();
            if len > open.offset {
                return Ok(Some(len));
            }
        }
        let all = self.files.list()?;
        let next = match &self.open {
            Some(open) => all.into_iter().find(|first| *first > open.first),
            // The one that has the next record, or the oldest that is kept.
            None => {
                let has_next = |first: &&u64| **first <= self.after + 1;
                all.iter().rev().find(has_next).or(all.first()).copied()
            }
        };
        let Some(first) = next else { return Ok(None) };
        let file = self.files.open(first)?;
        let len = file.metadata()?.len();
        self.open = Some(Open { first, file, offset: 0 });
        Ok(Some(len))
    }

    /// The next records before `end`. Lines that are no records are passed over; `verify` names them.
    fn records(&mut self, end: u64) -> io::Result<Vec<Record>> {
        let Some(open) = &mut self.open else { return Ok(Vec::new()) };
        open.file.seek(SeekFrom::Start(open.offset))?;
        let mut reader = BufReader::new(&open.file).take(end - open.offset);
        let (mut records, mut line) = (Vec::new(), Vec::new());
        while records.len() < limits::AUDIT_BATCH {
            line.clear();
            let read = reader
                .by_ref()
                .take(limits::AUDIT_RECORD_MAX_BYTES)
                .read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            open.offset += read as u64;
            let Some(parsed) = chain::parse(&line) else { continue };
            if parsed.seq > self.after {
                self.after = parsed.seq;
                records.extend(parsed.record);
            }
        }
        Ok(records)
    }
}
