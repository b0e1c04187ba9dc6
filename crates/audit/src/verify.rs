//! Checks the whole log: every byte of it is covered by the chain, by the names of the files, or by the head that is
//! noted beside it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Serialize;

use crate::chain::{self, Hash, Header};
use crate::files::{Files, Noted, lock_shared};
use crate::log::Head;
use crate::record::{Entry, GapReason};
use sandkeep_core::limits;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub files: usize,
    pub records: u64,
    /// The oldest record that is kept, and the hash that it is chained to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting_hash: Option<String>,
    /// The newest record and its hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    pub findings: Vec<Finding>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The log says it of itself, and a crash or a full disk explains it.
    Note,
    /// Records were changed, removed, inserted or lost.
    Broken,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    /// The record that it is about, or the one that should be there.
    pub seq: u64,
    pub what: String,
}

impl Report {
    pub fn is_intact(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Note)
    }

    /// The first record that is not what was written.
    pub fn first_bad(&self) -> Option<&Finding> {
        let broken = self.findings.iter().filter(|finding| finding.severity == Severity::Broken);
        broken.min_by_key(|finding| finding.seq)
    }

    fn add(&mut self, severity: Severity, seq: u64, what: impl Into<String>) {
        self.findings.push(Finding { severity, seq, what: what.into() });
    }
}

/// Reads the log of a data directory, whether or not a daemon writes to it.
pub fn verify(data: &Path) -> io::Result<Report> {
    verify_against(data, None)
}

/// The same, and compares it with a head that was noted elsewhere.
pub fn verify_against(data: &Path, elsewhere: Option<Head>) -> io::Result<Report> {
    let files = Files::of(data);
    let elsewhere = elsewhere.map(|Head { seq, hash }| Noted { seq, hash });
    if !files.exist() {
        let walk = Walk { elsewhere, ..Walk::default() };
        return Ok(walk.finish());
    }
    let (opened, noted) = {
        let lock = files.open_lock()?;
        let _locked = lock_shared(&lock)?;
        let mut opened = Vec::new();
        for first in files.list()? {
            let file = files.open(first)?;
            let len = file.metadata()?.len();
            opened.push((first, file, len));
        }
        (opened, files.noted()?)
    };
    let mut walk = Walk { noted, elsewhere, ..Walk::default() };
    walk.report.files = opened.len();
    for (first, file, len) in opened {
        walk.file(first, &file, len)?;
    }
    Ok(walk.finish())
}

#[derive(Default)]
struct Walk {
    report: Report,
    noted: Option<Noted>,
    elsewhere: Option<Noted>,
    /// The newest record so far that is right, or the one before the oldest file.
    last: Option<Noted>,
    /// The newest record of which the log says that it was removed because it expired.
    removed: Option<(u64, String)>,
    /// Something was wrong with the file before.
    is_broken: bool,
}

impl Walk {
    fn broken(&mut self, seq: u64, what: impl Into<String>) {
        self.report.add(Severity::Broken, seq, what);
        self.is_broken = true;
    }

    fn file(&mut self, first: u64, file: &File, len: u64) -> io::Result<()> {
        let mut reader = BufReader::new(file).take(len);
        let mut line = Vec::new();
        read_line(&mut reader, &mut line)?;
        let Some(header) = Header::parse(&line).filter(|header| header.first == first) else {
            self.broken(first, format!("the header of the file {first:020}.log was changed"));
            return Ok(());
        };
        self.follows(header);
        let mut last = Noted { seq: first - 1, hash: header.before };
        while read_line(&mut reader, &mut line)? > 0 {
            let expected = last.seq + 1;
            if !line.ends_with(b"\n") && (line.len() as u64) < limits::AUDIT_RECORD_MAX_BYTES {
                let what = "the log ends with an incomplete record, which the daemon cuts off when it starts";
                self.report.add(Severity::Note, expected, what);
                break;
            }
            let Some(read) = chain::check(&line, last.hash) else {
                self.broken(
                    expected,
                    "this record, or the hash before it, is not what was written",
                );
                break;
            };
            if read.seq != expected && !is_said(&read, expected) {
                self.broken(expected, format!("record {} follows instead", read.seq));
            }
            last = Noted { seq: read.seq, hash: read.hash };
            self.record(&read);
        }
        self.last = Some(last);
        Ok(())
    }

    /// A file goes on where the one before ended.
    fn follows(&mut self, Header { first, before }: Header) {
        match self.last {
            None => {
                self.report.first = Some(first);
                self.report.starting_hash = Some(before.to_string());
            }
            Some(last) if last.hash == before && last.seq + 1 == first => {}
            // The log goes on after damage that the daemon noticed; what is wrong was said.
            Some(_) if self.is_broken => {}
            Some(last) if last.hash == before => {
                self.broken(last.seq + 1, format!("the next file begins with record {first}"));
            }
            Some(last) => self.broken(
                last.seq + 1,
                format!("records are missing: the next file, which begins with {first}, is chained to another hash"),
            ),
        }
        self.is_broken = false;
    }

    fn record(&mut self, read: &chain::Line) {
        self.report.records += 1;
        let is_other = |noted: Noted| noted.seq == read.seq && noted.hash != read.hash;
        if self.noted.is_some_and(is_other) {
            self.broken(read.seq, "its hash is not the one that is noted in the file `head`");
        }
        if self.elsewhere.is_some_and(is_other) {
            self.broken(read.seq, "its hash is not the one that was given: the log was rewritten");
        }
        let Some(record) = &read.record else { return };
        match &record.entry {
            Entry::Removed { through, hash } => self.removed = Some((*through, hash.clone())),
            Entry::Gap { reason, records } => {
                let at = record.at;
                let (severity, what) = match reason {
                    GapReason::Full => (
                        Severity::Note,
                        format!("{records} records were lost while the disk was full"),
                    ),
                    GapReason::Torn => (
                        Severity::Note,
                        "an incomplete record, whose request was not answered, was cut off"
                            .to_owned(),
                    ),
                    GapReason::Missing => (
                        Severity::Broken,
                        format!(
                            "the {records} records before this one were missing when the daemon started at {at}"
                        ),
                    ),
                    GapReason::Damaged => (
                        Severity::Broken,
                        format!(
                            "the file before this record was damaged when the daemon started at {at}"
                        ),
                    ),
                };
                self.report.add(severity, record.seq, what);
            }
            Entry::Request(_) | Entry::Started { .. } | Entry::Suppressed { .. } => {}
        }
    }

    fn finish(mut self) -> Report {
        self.check_start();
        match (self.noted, self.last) {
            (Some(noted), last) => {
                let seq = last.map_or(0, |last| last.seq);
                if noted.seq > seq {
                    let what =
                        format!("the log ends here, but its newest record was {}", noted.seq);
                    self.broken(seq + 1, what);
                } else if noted.seq < seq && Some(noted.seq) < self.report.first {
                    self.broken(seq, "the file `head` names a record that expired long ago");
                }
            }
            (None, Some(last)) if last.seq > 0 => {
                self.broken(last.seq, "the file `head` is missing or damaged");
            }
            (None, _) => {}
        }
        self.check_elsewhere();
        let last = self.last.filter(|last| last.seq > 0);
        self.report.last = last.map(|last| last.seq);
        self.report.head = last.map(|last| last.hash.to_string());
        self.report
    }

    fn check_elsewhere(&mut self) {
        let Some(Noted { seq, .. }) = self.elsewhere else { return };
        if seq > self.last.map_or(0, |last| last.seq) {
            self.broken(seq, "the log does not go as far as the head that was given");
        } else if self.report.first.is_some_and(|first| seq < first) {
            let what = "the head that was given has expired and cannot be compared";
            self.report.add(Severity::Note, seq, what);
        }
    }

    /// The log begins with its first record, or after records of which it says that they expired.
    fn check_start(&mut self) {
        let Some(first) = self.report.first else { return };
        let starting_hash = self.report.starting_hash.clone().unwrap_or_default();
        if first == 1 {
            if starting_hash != Hash::GENESIS.to_string() {
                self.broken(1, "the first record is chained to something before it");
            }
            return;
        }
        match self.removed.take() {
            Some((through, hash)) if through + 1 == first && hash == starting_hash => {}
            // Its removal was cut off, and goes on with the next record.
            Some((through, _)) if through + 1 > first => {}
            _ => self.broken(
                1,
                format!("the records before {first} are missing, and the log does not say that they expired"),
            ),
        }
    }
}

/// Whether a record says itself that those before it are missing.
fn is_said(read: &chain::Line, expected: u64) -> bool {
    let entry = read.record.as_ref().map(|record| &record.entry);
    matches!(
        entry,
        Some(Entry::Gap { reason: GapReason::Missing | GapReason::Damaged, records })
            if expected + records == read.seq
    )
}

fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    line.clear();
    reader.take(limits::AUDIT_RECORD_MAX_BYTES).read_until(b'\n', line)
}
