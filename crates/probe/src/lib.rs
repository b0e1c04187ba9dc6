//! The isolation tests: the list of attempts, and the output format of the program that makes them.
//!
//! This library contains only the list and the format. The program `sandkeep-probe` works through the list inside a
//! sandbox; the host uses the same list to check that nothing was left out, because an attempt without an answer has
//! not held.

mod attempt;
mod report;

pub use attempt::{Attempt, Scope};
pub use report::{END, Report, Verdict};
