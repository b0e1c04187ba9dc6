//! edit_file: replaces a text that occurs exactly once in a file, or everywhere.
//!
//! A file keeps its line endings: they are ignored in the search, and the new text gets those of its place. All other
//! bytes are unchanged, even if they are not UTF-8.

mod line_endings;
mod nearest;

use std::path::Path;

use super::call::{EditFile, ReplaceAll};
use super::read_file::text_of;
use super::refusal::{Refusal, TextRefusal};
use super::write_file::replace;
use line_endings::{Endings, unix};

/// How many places of an ambiguous text are reported.
const PLACES_TOLD_MAX: usize = 10;
/// How many context lines of an edit are displayed.
const CONTEXT_LINES: usize = 3;
/// How many lines of the new text are displayed.
const SHOWN_LINES_MAX: usize = 40;

pub fn edit_file(call: &EditFile) -> Result<String, Refusal> {
    if call.old_string.is_empty() {
        return Err(TextRefusal::NothingToReplace.into());
    }
    let path = Path::new(&call.path);
    let edited = edited(call, text_of(path)?)?;
    replace(path, &edited.content)?;
    let times = match edited.places.len() {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    };
    let shown = edited.shown(unix(call.new_string.as_bytes()).len());
    Ok(format!("edited {} {times}; it now reads:\n{shown}", call.path))
}

/// A file with the new text in it.
#[derive(Debug)]
struct Edited {
    content: Vec<u8>,
    /// The same with normalized line endings, and the positions of the new text in it.
    plain: Vec<u8>,
    places: Vec<usize>,
}

fn edited(call: &EditFile, content: Vec<u8>) -> Result<Edited, Refusal> {
    let (old, new) = (unix(call.old_string.as_bytes()), unix(call.new_string.as_bytes()));
    if old == new {
        return Err(TextRefusal::NothingChanges.into());
    }
    let endings = Endings::of(&content);
    let plain = unix(&content);
    let found = occurrences(&plain, &old);
    match (found.len(), call.replace_all) {
        (0, _) => {
            let nearest = nearest::nearest(&plain, &old);
            Err(TextRefusal::NoMatch { path: call.path.clone(), nearest }.into())
        }
        (1, _) | (_, ReplaceAll::Yes) => Ok(replaced(&plain, &endings, &found, old.len(), &new)),
        (count, ReplaceAll::No) => {
            let lines = found.iter().take(PLACES_TOLD_MAX).map(|at| line_of(&plain, *at)).collect();
            Err(TextRefusal::NotUnique { path: call.path.clone(), count, lines }.into())
        }
    }
}

/// The non-overlapping occurrences of a text.
fn occurrences(plain: &[u8], old: &[u8]) -> Vec<usize> {
    let finder = memchr::memmem::Finder::new(old);
    finder.find_iter(plain).collect()
}

fn line_of(plain: &[u8], at: usize) -> usize {
    1 + memchr::memchr_iter(b'\n', &plain[..at]).count()
}

/// Inserts the new text at the places found, and restores every line ending.
fn replaced(
    plain: &[u8],
    endings: &Endings,
    found: &[usize],
    old_len: usize,
    new: &[u8],
) -> Edited {
    let mut edited = Edited { content: Vec::new(), plain: Vec::new(), places: Vec::new() };
    let mut at = 0;
    for place in found {
        edited.content.extend(endings.restore(plain, at..*place));
        edited.plain.extend_from_slice(&plain[at..*place]);
        edited.places.push(edited.plain.len());
        edited.content.extend(endings.apply(plain, *place, new));
        edited.plain.extend_from_slice(new);
        at = place + old_len;
    }
    edited.content.extend(endings.restore(plain, at..plain.len()));
    edited.plain.extend_from_slice(&plain[at..]);
    edited
}

impl Edited {
    /// The lines around the first place, with their numbers.
    fn shown(&self, new_len: usize) -> String {
        let Some(first) = self.places.first() else { return String::new() };
        let begin = line_of(&self.plain, *first);
        let end = line_of(&self.plain, first + new_len).min(begin + SHOWN_LINES_MAX);
        let from = begin.saturating_sub(CONTEXT_LINES).max(1);
        let text = String::from_utf8_lossy(&self.plain);
        let lines = text.lines().enumerate().skip(from - 1).take(end + CONTEXT_LINES + 1 - from);
        lines.map(|(at, line)| super::read_file::numbered(at + 1, line)).collect()
    }
}

#[cfg(test)]
mod tests;
