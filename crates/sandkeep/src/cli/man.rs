//! `sandkeep man`.

use std::path::PathBuf;

use clap::CommandFactory;

use crate::cli::Cli;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;

/// Write manual pages, one for each command, to a directory
///
/// For example: sandkeep man /usr/local/share/man/man1, then: man sandkeep-create
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// An existing directory, usually one called man1
    dir: PathBuf,
}

pub fn run(args: &ManArgs) -> Result<Exit, Failure> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    clap_mangen::generate_to(command, &args.dir)
        .map_err(Failure::system("write the manual pages; give an existing directory"))?;
    Ok(Exit::Ok)
}
