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

/// Until the next refresh. Ctrl-C ends the program.
pub async fn pause() {
    tokio::time::sleep(CLI_REFRESH).await;
}
