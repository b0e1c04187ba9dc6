//! One file of the log, named after the number of its first event.
//!
//! ```text
//!   sandkeep-events 1 <boot id>
//!   <check> {"seq":31874,"at":…,"owner":…,"sandbox":…,"kind":…,"data":…}
//!   …
//! ```
//!
//! The check tells a whole line from what a crash or a loss of power has left. It does not depend on what the line says,
//! so a kind that this version does not know is passed over and not taken for damage.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use sandkeep_core::TraceParent;
use sandkeep_core::event::{Event, EventKind, EventSeq, Subject};
use sandkeep_home::names;

const HEADER: &str = "sandkeep-events 1 ";
const SUFFIX: &str = ".log";
/// Eight digits and a space.
const CHECK_LEN: usize = 9;

pub fn path(dir: &Path, first: EventSeq) -> PathBuf {
    dir.join(format!("{:020}{SUFFIX}", first.get()))
}

/// The first events of all files, in order. Files with other names are ignored.
pub fn list(dir: &Path) -> io::Result<Vec<EventSeq>> {
    let number = |name: &String| name.strip_suffix(SUFFIX)?.parse().ok().map(EventSeq::new);
    let mut all: Vec<EventSeq> = names(dir)?.iter().filter_map(number).collect();
    all.sort_unstable();
    Ok(all)
}

/// Makes a file; returns how long it is.
pub fn begin(dir: &Path, first: EventSeq, boot_id: &str) -> io::Result<(File, u64)> {
    let path = path(dir, first);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(&path)?;
    let header = format!("{HEADER}{boot_id}\n");
    if let Err(error) = file.write_all_at(header.as_bytes(), 0) {
        // Else the next start finds a file without a header, and removes it.
        let _ = std::fs::remove_file(&path);
        return Err(error);
    }
    Ok((file, header.len() as u64))
}

/// What a file holds.
pub struct Scanned {
    pub file: File,
    pub boot_id: String,
    /// Up to the end of the last whole event.
    pub len: u64,
    pub last: EventSeq,
    pub events: Vec<Event>,
}

/// Reads all of a file; `None` if not even its header is whole.
pub fn scan(path: &Path, first: EventSeq) -> io::Result<Option<Scanned>> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let Some(boot_id) = lines.next().and_then(header) else { return Ok(None) };
    let mut events = Vec::new();
    let mut len = (HEADER.len() + boot_id.len() + 1) as u64;
    let mut last = EventSeq::new(first.get() - 1);
    for line in lines {
        match parse(line) {
            Some(Line { seq, event }) if seq > last => {
                last = seq;
                events.extend(event);
            }
            Some(_) | None => break,
        }
        len += line.len() as u64;
    }
    Ok(Some(Scanned { boot_id: boot_id.to_owned(), file, len, last, events }))
}

/// The boot in which a file was begun.
pub fn header(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line).ok()?.strip_prefix(HEADER)?.strip_suffix('\n')
}

/// All of an event but its number.
#[derive(Serialize)]
struct Body<'a> {
    at: Timestamp,
    #[serde(flatten)]
    subject: &'a Subject,
    #[serde(flatten)]
    kind: &'a EventKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<TraceParent>,
}

/// An event that happens now, where its request stands in its trace.
pub fn encode(at: Timestamp, subject: &Subject, kind: &EventKind) -> Vec<u8> {
    let traceparent = sandkeep_traces::current();
    serde_json::to_vec(&Body { at, subject, kind, traceparent })
        .expect("an event holds strings and numbers")
}

/// The line of an event, which gets its number only when its place is certain.
pub fn line(seq: EventSeq, body: &[u8]) -> Vec<u8> {
    let opened = format!("{{\"seq\":{seq},");
    let rest = body.strip_prefix(b"{").unwrap_or(body);
    let check = check(opened.bytes().chain(rest.iter().copied()));
    let mut line = Vec::with_capacity(CHECK_LEN + opened.len() + rest.len() + 1);
    line.extend_from_slice(format!("{check:08x} ").as_bytes());
    line.extend_from_slice(opened.as_bytes());
    line.extend_from_slice(rest);
    line.push(b'\n');
    line
}

/// A whole line.
pub struct Line {
    pub seq: EventSeq,
    /// `None`: a later version wrote it.
    pub event: Option<Event>,
}

/// `None`: it is not whole.
pub fn parse(line: &[u8]) -> Option<Line> {
    #[derive(Deserialize)]
    struct Numbered {
        seq: EventSeq,
    }
    let (check_text, json) = line.strip_suffix(b"\n")?.split_at_checked(CHECK_LEN)?;
    let expected = format!("{:08x} ", check(json.iter().copied()));
    if check_text != expected.as_bytes() {
        return None;
    }
    match serde_json::from_slice::<Event>(json) {
        Ok(event) => Some(Line { seq: event.seq, event: Some(event) }),
        Err(_) => {
            let Numbered { seq } = serde_json::from_slice(json).ok()?;
            Some(Line { seq, event: None })
        }
    }
}

/// FNV-1a: never 0 for zeros, cheap for a line.
fn check(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
