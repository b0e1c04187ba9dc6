//! The first page of a journal: the exec's description, and space for its end.
//!
//! ```text
//!   0      magic
//!   8      the end: length, check, JSON; zeros until there is one
//!   2048   the description: length, check, JSON
//!   …      the head of the output
//! ```
//!
//! The end overwrites existing bytes within one page: it needs no space on a full disk, and a killed daemon has written
//! all of it or nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Description;
use super::record::check;
use crate::ExecEnd;

const MAGIC: &[u8; 8] = b"SKexec1\n";
const END_AT: usize = MAGIC.len();
const DESCRIPTION_AT: usize = 2048;
const FRAME_LEN: usize = 8;
/// Maximum length of an end, as JSON.
const END_MAX: usize = DESCRIPTION_AT - END_AT - FRAME_LEN;
/// More than any description needs: its strings are bounded, and a byte takes at most six in JSON.
const DESCRIPTION_MAX: usize = 8 * 1024 * 1024;
/// How much is read at once; most covers are no longer.
const FIRST_READ: usize = 4096;

/// The beginning of a tail segment.
pub const TAIL_MAGIC: &[u8; 8] = b"SKtail1\n";

pub struct Cover {
    pub description: Description,
    pub end: Option<ExecEnd>,
    /// Offset of the output.
    pub len: u64,
}

/// A new journal's first bytes.
pub fn compose(description: &Description) -> Vec<u8> {
    let mut bytes = vec![0; DESCRIPTION_AT];
    bytes[..END_AT].copy_from_slice(MAGIC);
    bytes.extend_from_slice(&frame(description));
    bytes
}

/// `None` if it is incomplete: a crash interrupted its creation, before the exec started.
pub fn read(file: &File) -> io::Result<Option<Cover>> {
    let mut bytes = vec![0; FIRST_READ];
    let count = read_up_to(file, &mut bytes, 0)?;
    bytes.truncate(count);
    if bytes.len() < DESCRIPTION_AT + FRAME_LEN || !bytes.starts_with(MAGIC) {
        return Ok(None);
    }
    let len = length(&bytes[DESCRIPTION_AT..]);
    if len > DESCRIPTION_MAX {
        return Ok(None);
    }
    let total = DESCRIPTION_AT + FRAME_LEN + len;
    if bytes.len() < total {
        bytes.resize(total, 0);
        if read_up_to(file, &mut bytes[count..], count as u64)? < total - count {
            return Ok(None);
        }
    }
    let end = unframe(&bytes[END_AT..DESCRIPTION_AT]);
    let description = unframe(&bytes[DESCRIPTION_AT..total]);
    Ok(description.map(|description| Cover { description, end, len: total as u64 }))
}

/// Writes the end of an exec.
pub fn write_end(file: &File, end: &ExecEnd) -> io::Result<()> {
    file.write_all_at(&end_frame(end), END_AT as u64)
}

/// The error is the only part of an end that can be long; it is truncated to fit.
fn end_frame(end: &ExecEnd) -> Vec<u8> {
    let mut end = end.clone();
    loop {
        let framed = frame(&end);
        let Some(error) = end.error.as_mut().filter(|_| framed.len() > END_MAX + FRAME_LEN) else {
            return framed;
        };
        error.truncate(error.floor_char_boundary(error.len() / 2));
        error.push('…');
    }
}

fn frame<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![0; FRAME_LEN];
    serde_json::to_writer(&mut bytes, value).expect("plain data in memory always encodes");
    let (len, check) = ((bytes.len() - FRAME_LEN) as u32, check(&bytes[FRAME_LEN..]));
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes[4..FRAME_LEN].copy_from_slice(&check.to_le_bytes());
    bytes
}

fn length(frame: &[u8]) -> usize {
    frame.first_chunk::<4>().map_or(0, |len| u32::from_le_bytes(*len) as usize)
}

fn unframe<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (head, rest) = bytes.split_first_chunk::<FRAME_LEN>()?;
    let json = rest.get(..length(head)).filter(|json| !json.is_empty())?;
    let told = u32::from_le_bytes(*head.last_chunk::<4>()?);
    (told == check(json)).then(|| serde_json::from_slice(json).ok())?
}

/// Reads until the buffer is full or the file ends.
pub fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read_at(&mut buffer[count..], at + count as u64) {
            Ok(0) => break,
            Ok(read) => count += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
