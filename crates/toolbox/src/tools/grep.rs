//! grep: the lines of text files that match a regular expression.

use std::path::Path;

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use ignore::overrides::{Override, OverrideBuilder};

use super::call::Grep;
use super::read_file::explained;
use super::refusal::{Refusal, TextRefusal};
use super::walk::{Files, Progress, shown};
use super::{GREP_MATCH_MAX_CHARS, GREP_RESULTS_MAX};

/// The longest line that can be searched; files with longer ones are skipped and counted.
const LINE_MAX_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of a compiled expression.
const REGEX_MAX_BYTES: usize = 10 * 1024 * 1024;

pub fn grep(call: &Grep, tell: &mut dyn FnMut(Progress)) -> Result<String, Refusal> {
    let matcher = matcher(&call.pattern)?;
    let root = Path::new(call.path.as_deref().unwrap_or("."));
    std::fs::metadata(root).map_err(|error| explained(root, &error))?;
    let only = call.glob.as_deref().map(|glob| only(root, glob)).transpose()?;
    let mut searcher = SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(LINE_MAX_BYTES))
        .line_number(true)
        .build();
    let limit = call.max_results.clamp(1, GREP_RESULTS_MAX);
    let mut files = Files::beneath(root, call.gitignore, only, tell);
    let (mut lines, mut is_full) = (Vec::new(), false);
    while !is_full && let Some(entry) = files.next_file() {
        let name = shown(entry.path());
        let mut found = LineCollector { name: &name, matcher: &matcher, lines: &mut lines, limit };
        if searcher.search_path(&matcher, entry.path(), &mut found).is_err() {
            files.unreadable += 1;
        }
        is_full = lines.len() > limit;
        files.progress.found = lines.len().min(limit) as u64;
    }
    Ok(answer(lines, limit, &files))
}

fn answer(mut lines: Vec<String>, limit: usize, files: &Files) -> String {
    let more = lines.len() > limit;
    lines.truncate(limit);
    let mut answer = lines.concat();
    if lines.is_empty() {
        answer = format!("no match in {} files\n", files.progress.files_seen);
    }
    if more {
        answer.push_str(&format!(
            "[the first {limit} matches; there are more: make the pattern, path or glob narrower]\n"
        ));
    }
    answer + &files.remarks()
}

fn matcher(pattern: &str) -> Result<RegexMatcher, Refusal> {
    let built = RegexMatcherBuilder::new()
        .line_terminator(Some(b'\n'))
        .size_limit(REGEX_MAX_BYTES)
        .dfa_size_limit(REGEX_MAX_BYTES)
        .build(pattern);
    built.map_err(|error| {
        // The first line names the problem; the rest illustrates it.
        let said = error.to_string();
        let problem = said.lines().last().unwrap_or(&said).trim_start_matches("error: ").to_owned();
        TextRefusal::BadPattern { pattern: pattern.to_owned(), problem }.into()
    })
}

/// Which files are searched: as in a `.gitignore`, a glob without a slash matches names at any depth.
fn only(root: &Path, glob: &str) -> Result<Override, Refusal> {
    let mut builder = OverrideBuilder::new(root);
    let built = builder.add(glob).and_then(|builder| builder.build());
    built.map_err(|error| {
        let problem = match error {
            ignore::Error::Glob { err, .. } => err,
            other => other.to_string(),
        };
        TextRefusal::BadGlob { glob: glob.to_owned(), problem }.into()
    })
}

/// Collects the matching lines of one file, until the limit is exceeded.
struct LineCollector<'a> {
    name: &'a str,
    matcher: &'a RegexMatcher,
    lines: &'a mut Vec<String>,
    limit: usize,
}

impl Sink for LineCollector<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, std::io::Error> {
        let bytes = found.bytes();
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let start = self.matcher.find(bytes).ok().flatten().map_or(0, |found| found.start());
        let number = found.line_number().unwrap_or(0);
        let text = around(&String::from_utf8_lossy(bytes), start);
        self.lines.push(format!("{}:{number}:{text}\n", self.name));
        Ok(self.lines.len() <= self.limit)
    }
}

/// A line, or the part of a long one around the match.
fn around(line: &str, start: usize) -> String {
    let chars = line.chars().count();
    if chars <= GREP_MATCH_MAX_CHARS {
        return line.to_owned();
    }
    let at = line[..line.floor_char_boundary(start)].chars().count();
    let from = at.saturating_sub(GREP_MATCH_MAX_CHARS / 4).min(chars - GREP_MATCH_MAX_CHARS);
    let part: String = line.chars().skip(from).take(GREP_MATCH_MAX_CHARS).collect();
    let before = if from > 0 { "…" } else { "" };
    let after = if from + GREP_MATCH_MAX_CHARS < chars { "…" } else { "" };
    format!("{before}{part}{after} [line of {chars} characters]")
}

#[cfg(test)]
mod tests;
