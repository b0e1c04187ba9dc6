//! An agent's file tools: their arguments, answers, and refusals.
//!
//! A tool answers with text for a language model. If it cannot do something, it returns a [`Refusal`], which says what
//! was refused, by which rule, and what to do instead. Every answer is bounded, and says what it leaves out.

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

/// Limits of `read_file`: lines, bytes of a file, and displayed characters of a line.
pub const READ_LINES_MAX: usize = 2_000;
pub const READ_MAX_BYTES: u64 = 10 * 1024 * 1024;
pub const READ_LINE_MAX_CHARS: usize = 2_000;
/// Maximum size of a `read_file` answer, whatever the lines are: it easily fits a frame to the host.
pub const READ_ANSWER_MAX_BYTES: usize = 1024 * 1024;
/// Number of matches of `grep`: default and maximum; and how much of a line is displayed.
pub const GREP_RESULTS_DEFAULT: usize = 100;
pub const GREP_RESULTS_MAX: usize = 1_000;
pub const GREP_MATCH_MAX_CHARS: usize = 500;
/// Maximum number of paths of `glob`.
pub const GLOB_RESULTS_MAX: usize = 200;
/// Maximum number of entries of `ls`.
pub const LS_ENTRIES_MAX: usize = 1_000;

/// The messages of a call: any number of progress reports, and one of the others as the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    Progress(Progress),
    Text(String),
    Refused(Refusal),
}

/// Executes a call and sends all its messages.
pub(crate) fn answer(call: &Call, output: &mut Output) -> Result<(), Failure> {
    output.head(&())?;
    output.flush()?;
    // If the receiver is gone, sending the answer fails.
    let done = run(call, &mut |progress| {
        let _ = output.line(&Line::Progress(progress));
    });
    output.line(&match done {
        Ok(text) => Line::Text(text),
        Err(refusal) => Line::Refused(refusal),
    })
}

/// Executes a call. Long searches report their progress from time to time.
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
