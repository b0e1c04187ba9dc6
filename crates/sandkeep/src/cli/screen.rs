//! Tables that are refreshed in place, for `--watch` and `stats`.

use std::io::IsTerminal;

use crate::cli::failure::Failure;
use crate::cli::print;
use sandkeep_core::limits::CLI_REFRESH;

/// Moves to the top left and clears from there.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Shows these lines instead of the former ones; without a terminal, below them.
pub fn show(lines: Vec<String>) -> Result<(), Failure> {
    let mut text = if std::io::stdout().is_terminal() { CLEAR.to_owned() } else { String::new() };
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    print::stdout(text.as_bytes())
}

/// Lines at the end of the terminal, which the next ones replace. Without a terminal nothing is shown.
#[derive(Debug, Default)]
pub struct Lines {
    shown: usize,
}

impl Lines {
    /// On stderr, because stdout is for the result.
    pub fn show(&mut self, lines: &[String]) -> Result<(), Failure> {
        if !std::io::stderr().is_terminal() {
            return Ok(());
        }
        let mut text = String::new();
        if self.shown > 0 {
            // To the first line, and all below is cleared.
            text = format!("\x1b[{}A\x1b[J", self.shown);
        }
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        self.shown = lines.len();
        print::stderr(text.as_bytes())
    }
}

/// Until the next refresh. Ctrl-C ends the program.
pub async fn pause() {
    tokio::time::sleep(CLI_REFRESH).await;
}
