//! The escape battery: what is tried, and what the program that tries it says.
//!
//! This library is only the list and the lines. The program `sandkeep-probe` works through the list inside a sandbox;
//! the host knows from the same list that nothing was left out, because an attempt without an answer has not held.

mod attempt;
mod report;

pub use attempt::{Attempt, Scope};
pub use report::{END, Report, Verdict};
