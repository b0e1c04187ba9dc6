//! `sandkeep tools`: lists the tools for agents.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use sandkeep_broker::catalogue;
use sandkeep_doors::rest::tools::Tools;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    format: Format,
}

/// The list is the same for every sandbox and every daemon of this version, so no daemon is asked.
pub fn run(args: Args) -> Result<Exit, Failure> {
    if args.format.json {
        print::json(&serde_json::json!(Tools::all()))?;
        return Ok(Exit::Ok);
    }
    let row = |tool: &sandkeep_broker::Tool| {
        let effect = match (tool.annotations.read_only, tool.annotations.destructive) {
            (true, _) => "reads",
            (false, true) => "changes",
            (false, false) => "adds",
        };
        let takes = tool.takes();
        [tool.name.as_str().to_owned(), tool.tier.number().to_string(), effect.to_owned(), takes]
    };
    print::table(["NAME", "TIER", "EFFECT", "TAKES"], catalogue().iter().map(row))?;
    Ok(Exit::Ok)
}
