//! `sandkeep completions`.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Cli, print};

/// Print what makes a shell complete commands and options
///
/// For example, in ~/.bashrc: source <(sandkeep completions bash)
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which shell
    shell: Shell,
}

pub fn run(args: Args) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "sandkeep", &mut script);
    print::stdout(&script)?;
    Ok(Exit::Ok)
}
