//! The program `sandkeep-toolbox`: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolbox::run()
}
