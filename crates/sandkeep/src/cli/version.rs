//! `sandkeep version`.

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    format: Format,
}

pub fn run(args: Args) -> Result<Exit, Failure> {
    if args.format.json {
        print::json(&json!({ "version": VERSION }))?
    } else {
        print::line(&format!("sandkeep {VERSION}"))?
    }
    Ok(Exit::Ok)
}
