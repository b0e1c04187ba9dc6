//! Line differences of two files, in the format of `diff -u`.
//!
//! A file with a NUL among its first bytes is binary, as in git, and only reported as such. Others need not be UTF-8:
//! lines are compared as bytes, and invalid UTF-8 is shown as U+FFFD.

use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::time::Instant;

use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};

use super::{Change, FileKind};
use crate::{TreePath, View};
use sandkeep_core::limits;

/// Context lines around a difference.
const CONTEXT_LINES: usize = 3;
/// A NUL within this range makes a file binary.
const BINARY_WITHIN_BYTES: usize = 8_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    Unified(String),
    Binary,
    /// A file is too large to compare, or all texts together are too long.
    TooLarge,
}

/// `None` if there are no lines to show. `room` is the remaining size for all texts.
pub(super) fn of(
    change: &Change,
    from: &View,
    to: &View,
    room: &mut usize,
) -> io::Result<Option<Text>> {
    let old_path = change.from_path.as_ref().unwrap_or(&change.path);
    let is_file = |facts: &Option<super::Facts>| {
        facts.as_ref().is_some_and(|facts| facts.kind == FileKind::File)
    };
    if !is_file(&change.before) && !is_file(&change.after) {
        return Ok(None);
    }
    let old = if is_file(&change.before) { read(from, old_path)? } else { Held::Nothing };
    let new = if is_file(&change.after) { read(to, &change.path)? } else { Held::Nothing };
    let (Some(before), Some(after)) = (old.bytes(), new.bytes()) else {
        return Ok(Some(Text::TooLarge));
    };
    if before == after {
        return Ok(None);
    }
    if is_binary(before) || is_binary(after) {
        return Ok(Some(Text::Binary));
    }
    let names =
        [(&old, "a/", old_path), (&new, "b/", &change.path)].map(|(held, side, path)| match held {
            Held::Nothing => "/dev/null".to_owned(),
            Held::Bytes(_) | Held::TooMuch => format!("{side}{}", path.shown()),
        });
    let text = unified(before, after, &names);
    match room.checked_sub(text.len()) {
        Some(left) => *room = left,
        None => return Ok(Some(Text::TooLarge)),
    }
    Ok(Some(Text::Unified(text)))
}

enum Held {
    Nothing,
    Bytes(Vec<u8>),
    TooMuch,
}

impl Held {
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Nothing => Some(&[]),
            Self::Bytes(bytes) => Some(bytes),
            Self::TooMuch => None,
        }
    }
}

fn read(view: &View, path: &TreePath) -> io::Result<Held> {
    let Some(node) = view.look(path)? else { return Ok(Held::Nothing) };
    let max = limits::DIFF_TEXT_FILE_MAX_BYTES;
    let mut bytes = Vec::new();
    node.open()?.take(max + 1).read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 > max { Held::TooMuch } else { Held::Bytes(bytes) })
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(BINARY_WITHIN_BYTES).any(|byte| *byte == 0)
}

/// Compares both files by lines for a bounded time; after that the rest is one large difference, which is also correct.
fn unified(before: &[u8], after: &[u8], [old_name, new_name]: &[String; 2]) -> String {
    let lines = |bytes: &'_ [u8]| -> Vec<Vec<u8>> {
        bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    };
    let (old, new) = (lines(before), lines(after));
    let deadline = Instant::now() + limits::DIFF_TEXT_EFFORT;
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline));
    let mut text = format!("--- {old_name}\n+++ {new_name}\n");
    for hunk in group_diff_ops(ops, CONTEXT_LINES) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let olds = range(first.old_range().start, last.old_range().end);
        let news = range(first.new_range().start, last.new_range().end);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "@@ -{olds} +{news} @@");
        hunk.iter().for_each(|op| add(&mut text, op, &old, &new));
    }
    text
}

/// As in `diff -u`: counted from 1, the length omitted if it is 1, and for an empty range the line before.
fn range(start: usize, end: usize) -> String {
    match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    }
}

fn add(text: &mut String, op: &DiffOp, old: &[Vec<u8>], new: &[Vec<u8>]) {
    let (tag, olds, news) = op.as_tag_tuple();
    match tag {
        DiffTag::Equal => lines(text, ' ', &old[olds]),
        DiffTag::Delete => lines(text, '-', &old[olds]),
        DiffTag::Insert => lines(text, '+', &new[news]),
        DiffTag::Replace => {
            lines(text, '-', &old[olds]);
            lines(text, '+', &new[news]);
        }
    }
}

fn lines(text: &mut String, sign: char, lines: &[Vec<u8>]) {
    for line in lines {
        text.push(sign);
        text.push_str(&String::from_utf8_lossy(line));
        if line.last() != Some(&b'\n') {
            text.push_str("\n\\ No newline at end of file\n");
        }
    }
}
