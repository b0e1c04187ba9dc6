//! The tools of an agent that work on files: what they are asked, what they answer, and how they refuse.
//!
//! A tool answers text for a language model. What it cannot do it refuses by a [`Refusal`], which says what was
//! refused, by which rule, and what to do instead. Every answer is bounded, and says what it leaves out.

mod call;
mod edit_file;
mod glob;
mod grep;
mod ls;
mod read_file;
mod refusal;
mod walk;
mod write_file;

use serde::{Deserialize, Serialize};

use crate::answer::Failure;
use crate::wire::Output;

pub use call::{Call, EditFile, Gitignore, Glob, Grep, Ls, ReadFile, ReplaceAll, WriteFile};
pub use refusal::{CommandRefusal, FileRefusal, Nearest, Refusal, Said, TextRefusal};
pub use walk::Progress;

/// How many lines, and bytes of a file, `read_file` reads, and how many characters of a line it shows.
pub const READ_LINES_MAX: usize = 2_000;
pub const READ_MAX_BYTES: u64 = 10 * 1024 * 1024;
pub const READ_LINE_MAX_CHARS: usize = 2_000;
/// How much of a file `read_file` answers, whatever the lines are: what a frame to the host carries with ease.
pub const READ_ANSWER_MAX_BYTES: usize = 1024 * 1024;
/// How many matches `grep` answers unless asked otherwise, and at most; how much it shows of a line.
pub const GREP_RESULTS_DEFAULT: usize = 100;
pub const GREP_RESULTS_MAX: usize = 1_000;
pub const GREP_MATCH_MAX_CHARS: usize = 500;
/// How many paths `glob` answers.
pub const GLOB_RESULTS_MAX: usize = 200;
/// How many entries of a directory `ls` answers.
pub const LS_ENTRIES_MAX: usize = 1_000;

/// What a call is answered by: how far it is, any number of times, and one of the others as the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    Progress(Progress),
    Text(String),
    Refused(Refusal),
}

/// Carries out a call and says everything about it.
pub(crate) fn answer(call: &Call, output: &mut Output) -> Result<(), Failure> {
    output.head(&())?;
    output.flush()?;
    // Whoever does not listen any more is found out when the answer is sent.
    let done = run(call, &mut |progress| {
        let _ = output.line(&Line::Progress(progress));
    });
    output.line(&match done {
        Ok(text) => Line::Text(text),
        Err(refusal) => Line::Refused(refusal),
    })
}

/// Carries out a call. Long searches tell from time to time how far they are.
pub fn run(call: &Call, tell: &mut dyn FnMut(Progress)) -> Result<String, Refusal> {
    match call {
        Call::ReadFile(call) => read_file::read_file(call),
        Call::WriteFile(call) => write_file::write_file(call),
        Call::EditFile(call) => edit_file::edit_file(call),
        Call::Ls(call) => ls::ls(call),
        Call::Grep(call) => grep::grep(call, tell),
        Call::Glob(call) => glob::glob(call, tell),
    }
}

#[cfg(test)]
mod tests;
