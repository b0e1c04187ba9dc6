//! The file that is written to. Everything here is done under the lock of the log.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{Bounds, Head, Role};
use crate::chain::{self, Hash, Header};
use crate::files::{Files, Noted, encode_head};
use crate::record::{Entry, GapReason};
use crate::share::Shares;
use sandkeep_core::limits;

pub struct Tail {
    pub lock: Arc<File>,
    /// What was taken of this file.
    pub shares: Shares,
    noted: File,
    file: Arc<File>,
    begun: SystemTime,
    /// How much of the file is whole records.
    len: u64,
    /// How much of it has a place on the disk.
    allocated: u64,
    seq: u64,
    hash: Hash,
    is_synced: bool,
}

/// A tail, and what has to be said about what was found.
pub struct Opened {
    pub tail: Tail,
    pub noticed: Vec<Entry>,
}

/// What a file holds.
struct Scan {
    seq: u64,
    hash: Hash,
    len: u64,
    /// Lines, whole ones or not.
    lines: u64,
    end: End,
    shares: Shares,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    /// There is the beginning of a line.
    Torn,
    /// There is a line that was not written like this.
    Damaged,
}

impl Tail {
    /// Finds the newest record, cuts off what a crash left of one, and begins a file where there is none to go on with.
    pub fn open(files: &Files, lock: Arc<File>, role: Role) -> io::Result<Opened> {
        let noted = files.noted()?.unwrap_or(Noted { seq: 0, hash: Hash::GENESIS });
        let all = files.list_begun()?;
        let scan = match all.last() {
            Some(first) => Some((*first, scan_file(files, *first)?)),
            None => None,
        };
        let (seq, hash) = match &scan {
            Some((_, scan)) => (scan.seq, scan.hash),
            None => (0, noted.hash),
        };
        let missing = noted.seq.saturating_sub(seq);
        let mut noticed = Vec::new();
        let mut gap = |reason, records| noticed.push(Entry::Gap { reason, records });
        let (file, len, shares) = match scan {
            Some((first, Scan { len, end, shares, .. })) if end != End::Damaged => {
                let file = files.open(first)?;
                if end == End::Torn {
                    file.set_len(len)?;
                    gap(GapReason::Torn, 0);
                }
                if missing > 0 {
                    gap(GapReason::Missing, missing);
                }
                (file, len, shares)
            }
            other => {
                let damaged = other.is_some();
                // No number of the damaged file is used again.
                let used = other
                    .map_or(0, |(first, scan)| (first - 1 + scan.lines).max(first))
                    .max(noted.seq);
                let reason = if damaged { GapReason::Damaged } else { GapReason::Missing };
                if used > seq {
                    gap(reason, used - seq);
                } else if damaged {
                    gap(reason, 0);
                }
                if role == Role::Beside && damaged {
                    return Err(io::Error::other("its newest file is damaged"));
                }
                let (file, len) = files.begin(Header { first: used + 1, before: hash })?;
                (file, len, Shares::default())
            }
        };
        let begun = file.metadata()?.created().unwrap_or_else(|_| SystemTime::now());
        let tail = Self {
            lock,
            shares,
            noted: files.open_head()?,
            file: Arc::new(file),
            begun,
            len,
            allocated: len,
            seq,
            hash,
            is_synced: true,
        };
        Ok(Opened { tail, noticed })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn head(&self) -> Head {
        Head { seq: self.seq, hash: self.hash }
    }

    pub fn is_old(&self) -> bool {
        self.begun.elapsed().is_ok_and(|age| age > limits::AUDIT_SEGMENT_MAX_AGE)
    }

    /// Reads what others have appended. `false`: the file is not what it was, and has to be opened anew.
    pub fn catch_up(&mut self) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        // It is gone, or its end is.
        if std::os::unix::fs::MetadataExt::nlink(&metadata) == 0 || metadata.len() < self.len {
            return Ok(false);
        }
        if metadata.len() == self.len {
            return Ok(true);
        }
        let mut bytes = vec![0; usize::try_from(metadata.len() - self.len).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut bytes, self.len)?;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(read) = chain::check(line, self.hash) else { return Ok(false) };
            (self.seq, self.hash) = (read.seq, read.hash);
            self.len += line.len() as u64;
            if let Some(record) = read.record {
                self.shares.take(&record.entry, line.len() as u64);
            }
        }
        self.allocated = self.allocated.max(self.len);
        Ok(true)
    }

    /// Makes sure that so many more bytes can be written.
    pub fn allocate(&mut self, bytes: u64) -> io::Result<()> {
        let needed = self.len + bytes;
        if needed <= self.allocated {
            return Ok(());
        }
        // A failure may free what is in its range, so that begins where nothing is promised.
        let from = self.allocated;
        for end in [needed + limits::AUDIT_ALLOCATION_BYTES, needed] {
            match allocate(&self.file, from, end - from) {
                Ok(()) => {
                    self.allocated = end;
                    return Ok(());
                }
                Err(error) if end == needed => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    pub fn append(&mut self, at: Timestamp, entry: &Entry) -> io::Result<u64> {
        let skipped = match entry {
            Entry::Gap { reason: GapReason::Missing | GapReason::Damaged, records } => *records,
            _ => 0,
        };
        let seq = self.seq + skipped + 1;
        let (line, hash) = chain::encode(seq, at, entry, self.hash);
        if let Err(error) = self.file.write_all_at(&line, self.len) {
            // Else the next one who looks finds a torn record.
            let _ = self.file.set_len(self.len);
            self.allocated = self.len;
            return Err(error);
        }
        self.len += line.len() as u64;
        self.allocated = self.allocated.max(self.len);
        (self.seq, self.hash) = (seq, hash);
        self.shares.take(entry, line.len() as u64);
        self.is_synced = false;
        // If it stays behind, less of a cut-off end is noticed, and nothing else is wrong.
        let _ = self.noted.write_all_at(encode_head(Noted { seq, hash }).as_bytes(), 0);
        Ok(seq)
    }

    /// Goes on in a new file, which has space for what was promised. On an error the old one stays.
    pub fn rotate(&mut self, files: &Files, needed: u64) -> io::Result<()> {
        let header = Header { first: self.seq + 1, before: self.hash };
        let (file, len) = files.begin(header)?;
        if needed > 0
            && let Err(error) = allocate(&file, len, needed)
        {
            let _ = fs::remove_file(files.path(header.first));
            return Err(error);
        }
        // It gives back what was allocated ahead.
        let _ = self.file.set_len(self.len);
        let _ = self.file.sync_data();
        (self.file, self.len, self.allocated) = (Arc::new(file), len, len + needed);
        (self.shares, self.begun) = (Shares::default(), SystemTime::now());
        Ok(())
    }

    /// Removes the oldest files that are over the bounds, each after a record that says so.
    pub fn expire(&mut self, files: &Files, bounds: Bounds) -> io::Result<()> {
        let all = files.list()?;
        let mut sizes = Vec::new();
        for first in &all {
            let metadata = fs::metadata(files.path(*first))?;
            sizes.push((*first, metadata.len(), metadata.modified()?));
        }
        let mut total: u64 = sizes.iter().map(|(_, bytes, _)| bytes).sum();
        for pair in sizes.windows(2) {
            let [(first, bytes, modified), (next, ..)] = pair else { break };
            if total <= bounds.max_bytes && !is_older(*modified, bounds.max_age) {
                break;
            }
            let after = read_header(&files.open(*next)?)?;
            let Some(Header { before, .. }) = after else { break };
            let removed = Entry::Removed { through: next - 1, hash: before.to_string() };
            self.append(Timestamp::now(), &removed)?;
            fs::remove_file(files.path(*first))?;
            total -= bytes;
        }
        Ok(())
    }

    /// The file, if it has something that was not synced; from now on it counts as synced.
    pub fn unsynced(&mut self) -> Option<Arc<File>> {
        (!std::mem::replace(&mut self.is_synced, true)).then(|| Arc::clone(&self.file))
    }

    /// Gives back what was allocated ahead.
    pub fn close(&mut self) -> io::Result<()> {
        self.file.set_len(self.len)?;
        self.allocated = self.len;
        self.file.sync_data()
    }
}

fn is_older(modified: SystemTime, age: Duration) -> bool {
    modified.elapsed().is_ok_and(|since| since > age)
}

/// A filesystem that cannot say so in advance says it when it is written to.
fn allocate(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, from, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn read_header(file: &File) -> io::Result<Option<Header>> {
    let mut line = Vec::new();
    BufReader::new(file).take(limits::AUDIT_RECORD_MAX_BYTES).read_until(b'\n', &mut line)?;
    Ok(Header::parse(&line))
}

/// Reads a file up to the first line that is not whole.
fn scan_file(files: &Files, first: u64) -> io::Result<Scan> {
    let mut reader = BufReader::new(files.open(first)?);
    let mut line = Vec::new();
    let mut next = |line: &mut Vec<u8>| {
        line.clear();
        reader.by_ref().take(limits::AUDIT_RECORD_MAX_BYTES).read_until(b'\n', line)
    };
    next(&mut line)?;
    let header = Header::parse(&line).filter(|header| header.first == first);
    let before = Header { first, before: Hash::GENESIS };
    let Header { before, .. } = header.unwrap_or(before);
    let mut scan = Scan {
        seq: first - 1,
        hash: before,
        len: line.len() as u64,
        lines: 0,
        end: if header.is_some() { End::Whole } else { End::Damaged },
        shares: Shares::default(),
    };
    while next(&mut line)? > 0 {
        scan.lines += 1;
        if scan.end == End::Damaged {
            continue;
        }
        match chain::check(&line, scan.hash) {
            Some(read) => {
                (scan.seq, scan.hash) = (read.seq, read.hash);
                scan.len += line.len() as u64;
                if let Some(record) = read.record {
                    scan.shares.take(&record.entry, line.len() as u64);
                }
            }
            None if line.ends_with(b"\n") => scan.end = End::Damaged,
            None => scan.end = End::Torn,
        }
    }
    Ok(scan)
}
