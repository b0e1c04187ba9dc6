//! The program `sandkeep-toolbox`: all code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolbox::run()
}
