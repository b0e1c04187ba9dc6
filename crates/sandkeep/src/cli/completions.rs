//! `sandkeep completions`.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Cli, print};

/// Print a shell completion script
///
/// For example, in ~/.bashrc: source <(sandkeep completions bash)
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell to complete for
    shell: Shell,
}

pub fn run(args: Args) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "sandkeep", &mut script);
    print::stdout(&script)?;
    Ok(Exit::Ok)
}
