//! The part of a file most similar to a text that is not in it, as a hint for a slightly wrong text.
//!
//! Every word of the text votes for the places where the text would start; the places with the most votes are compared
//! character by character. The work is bounded, whatever the file is, because a hint is worth only a moment.

use std::collections::HashMap;

use similar::{ChangeTag, TextDiff};

use crate::tools::refusal::Nearest;

/// Maximum number of compared lines of a text, and of a file.
const TEXT_LINES_MAX: usize = 60;
const FILE_LINES_MAX: usize = 200_000;
/// A line counts for at most this many bytes.
const LINE_MAX_BYTES: usize = 400;
/// How many places of a file are compared character by character.
const CANDIDATES_MAX: usize = 12;
/// Less similar parts are no hint.
const ALIKE_MIN: f32 = 0.4;

pub fn nearest(plain: &[u8], old: &[u8]) -> Option<Nearest> {
    let (file, text) = (String::from_utf8_lossy(plain), String::from_utf8_lossy(old));
    let file: Vec<&str> = file.lines().take(FILE_LINES_MAX).map(clipped).collect();
    let text: Vec<&str> = text.lines().take(TEXT_LINES_MAX).map(clipped).collect();
    let height = text.len().min(file.len());
    let sought = text.join("\n");
    let alike = |start: usize| {
        let there = file[start..start + height].join("\n");
        (TextDiff::from_chars(sought.trim(), there.trim()).ratio(), start)
    };
    let candidates =
        candidates(&file, &text).into_iter().filter(|start| start + height <= file.len());
    let best = candidates.map(alike).max_by(|(a, _), (b, _)| a.total_cmp(b));
    let (ratio, start) = best.filter(|(ratio, _)| *ratio >= ALIKE_MIN)?;
    let difference = difference(&text, &file[start..start + height]);
    // It was not found, so something differs, if only white space.
    let percent = ((ratio * 100.0) as u8).min(99);
    Some(Nearest { line: start + 1, percent, difference })
}

/// The lines of the file with the most votes, best first.
fn candidates(file: &[&str], text: &[&str]) -> Vec<usize> {
    let mut lines_of: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, line) in text.iter().enumerate() {
        words(line).for_each(|word| lines_of.entry(word).or_default().push(at));
    }
    let mut votes = vec![0usize; file.len()];
    for (at, line) in file.iter().enumerate() {
        let starts = words(line).filter_map(|word| lines_of.get(word)).flatten();
        starts.filter_map(|line| at.checked_sub(*line)).for_each(|start| votes[start] += 1);
    }
    let mut places: Vec<usize> = (0..file.len()).filter(|start| votes[*start] > 0).collect();
    places.sort_by_key(|start| std::cmp::Reverse(votes[*start]));
    places.truncate(CANDIDATES_MAX);
    places
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn clipped(line: &str) -> &str {
    &line[..line.floor_char_boundary(LINE_MAX_BYTES)]
}

fn difference(text: &[&str], there: &[&str]) -> String {
    let diff = TextDiff::from_slices(text, there);
    let line = |change: similar::Change<&str>| {
        let sign = match change.tag() {
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
            ChangeTag::Equal => ' ',
        };
        format!("{sign}{}", change.value())
    };
    diff.iter_all_changes().map(line).collect::<Vec<_>>().join("\n")
}
