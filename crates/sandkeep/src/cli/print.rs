//! Writes to stdout so that a reader who stops reading ends us quietly and not with a panic.

use std::io::{self, Write};

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::Value;

use crate::cli::failure::Failure;
use sandkeep_guestlink::Outcome;

pub fn line(text: &str) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{text}").map_err(Failure::system("write to stdout"))
}

pub fn json(value: &Value) -> Result<(), Failure> {
    line(&format!("{value:#}"))
}

/// A note on stderr. If even stderr is closed, the note is dropped.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "sandkeep: {text}");
}

/// A failure as JSON on stderr, so that stdout has the result or nothing.
pub fn failure(value: &Value) {
    let _ = writeln!(io::stderr().lock(), "{value}");
}

pub fn stdout(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(Failure::system("write to stdout"))
}

pub fn stderr(bytes: &[u8]) -> Result<(), Failure> {
    io::stderr().lock().write_all(bytes).map_err(Failure::system("write to stderr"))
}

/// Prints how a command ended if its exit code alone does not show it.
pub fn ending(outcome: &Outcome, error: Option<&str>) {
    let what = match outcome {
        Outcome::Exited(_) | Outcome::Signaled(_) => None,
        Outcome::TimedOut => Some("the command timed out and was killed"),
        Outcome::Canceled => Some("the command was canceled"),
        Outcome::OomKilled => Some("the command was killed: out of memory"),
        Outcome::Lost => Some("the outcome of the command is unknown"),
    };
    match (what, error) {
        (Some(what), Some(error)) => note(&format!("{what}: {error}")),
        (Some(text), None) | (None, Some(text)) => note(text),
        (None, None) => {}
    }
}

/// A table without lines, so that other programs can split the columns.
pub fn table<const N: usize>(
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Result<(), Failure> {
    wide_table(header, rows.map(Vec::from))
}

/// The same with any number of columns.
pub fn wide_table<'a>(
    header: impl IntoIterator<Item = &'a str>,
    rows: impl Iterator<Item = Vec<String>>,
) -> Result<(), Failure> {
    lines(header, rows).iter().try_for_each(|text| line(text))
}

/// The lines of a table.
pub fn lines<'a>(
    header: impl IntoIterator<Item = &'a str>,
    rows: impl Iterator<Item = Vec<String>>,
) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|text| text.trim_end().to_owned()).collect()
}
