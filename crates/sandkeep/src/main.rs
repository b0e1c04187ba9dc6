//! The `sandkeep` binary: daemon, launcher and CLI in one file. All code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandkeep::cli::main()
}
