//! The form of the log's files: each line has the hash of its record and of the hash before it.
//!
//! ```text
//!   sandkeep-audit 1 <first seq> <hash before it>
//!   <hash> {"seq":…,"at":…,"kind":…}            hash = SHA-256(hash before it, as 32 bytes · the JSON as written)
//!   …
//! ```

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use ring::digest::{Context, SHA256};
use serde::Serialize;

use crate::record::{Entry, Record};

const MAGIC: &str = "sandkeep-audit 1 ";
const HASH_BYTES: usize = 32;
const HEX_BYTES: usize = 2 * HASH_BYTES;

/// What a record is chained to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hash([u8; HASH_BYTES]);

impl Hash {
    /// Before the first record of a log.
    pub const GENESIS: Self = Self([0; HASH_BYTES]);

    fn of(before: Self, json: &[u8]) -> Self {
        let mut context = Context::new(&SHA256);
        context.update(&before.0);
        context.update(json);
        let digest = context.finish();
        Self(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 64 digits from 0 to 9 and a to f")]
pub struct NotAHash;

impl FromStr for Hash {
    type Err = NotAHash;

    /// Only what we write: upper case would be another byte in the file.
    fn from_str(text: &str) -> Result<Self, NotAHash> {
        if text.len() != HEX_BYTES || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(NotAHash);
        }
        let mut bytes = [0; HASH_BYTES];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| NotAHash)?;
        Ok(Self(bytes))
    }
}

/// The first line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub first: u64,
    pub before: Hash,
}

impl Header {
    pub fn encode(self) -> String {
        let Self { first, before } = self;
        format!("{MAGIC}{first:020} {before}\n")
    }

    pub fn parse(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?;
        let (first, before) = text.strip_suffix('\n')?.strip_prefix(MAGIC)?.split_once(' ')?;
        let header = Self { first: first.parse().ok()?, before: before.parse().ok()? };
        // One form only, so that no byte of it can be another.
        (header.encode().as_bytes() == line).then_some(header)
    }
}

/// A line, and what the next one is chained to.
pub fn encode(seq: u64, at: Timestamp, entry: &Entry, before: Hash) -> (Vec<u8>, Hash) {
    #[derive(Serialize)]
    struct Borrowed<'a> {
        seq: u64,
        at: Timestamp,
        #[serde(flatten)]
        entry: &'a Entry,
    }
    let json = serde_json::to_vec(&Borrowed { seq, at, entry })
        .expect("a record holds only strings and numbers");
    let hash = Hash::of(before, &json);
    let mut line = Vec::with_capacity(HEX_BYTES + json.len() + 2);
    line.extend_from_slice(hash.to_string().as_bytes());
    line.push(b' ');
    line.extend_from_slice(&json);
    line.push(b'\n');
    (line, hash)
}

/// A line that is what was written after `before`.
pub struct Line {
    pub seq: u64,
    pub hash: Hash,
    /// `None` if a later version wrote it.
    pub record: Option<Record>,
}

/// Checks a line against the hash before it.
pub fn check(line: &[u8], before: Hash) -> Option<Line> {
    let (hash, json) = split(line)?;
    if Hash::of(before, json) != hash {
        return None;
    }
    let (seq, record) = read(json)?;
    Some(Line { seq, hash, record })
}

/// Reads a line without checking it.
pub fn parse(line: &[u8]) -> Option<Line> {
    let (hash, json) = split(line)?;
    let (seq, record) = read(json)?;
    Some(Line { seq, hash, record })
}

fn split(line: &[u8]) -> Option<(Hash, &[u8])> {
    let (hash, rest) = line.strip_suffix(b"\n")?.split_at_checked(HEX_BYTES)?;
    let hash = std::str::from_utf8(hash).ok()?.parse().ok()?;
    Some((hash, rest.strip_prefix(b" ")?))
}

fn read(json: &[u8]) -> Option<(u64, Option<Record>)> {
    #[derive(serde::Deserialize)]
    struct Numbered {
        seq: u64,
    }
    match serde_json::from_slice::<Record>(json) {
        Ok(record) => Some((record.seq, Some(record))),
        Err(_) => Some((serde_json::from_slice::<Numbered>(json).ok()?.seq, None)),
    }
}
