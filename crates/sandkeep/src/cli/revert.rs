//! `sandkeep revert`: some files become again what they were.

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use sandkeep_client::Client;
use sandkeep_core::api::Reverted;

/// Let files and directories be again as they were in a snapshot
///
/// They are made, replaced or removed, whatever it takes; nothing else changes, and processes go on. Prints what
/// was not already so.
#[derive(Debug, clap::Args)]
pub struct RevertArgs {
    /// The sandbox's id, or the beginning of it
    id: String,
    /// The snapshot, by its id or name
    #[arg(long, value_name = "SNAPSHOT")]
    to: String,
    /// Paths in the sandbox
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: RevertArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let body = json!({ "snapshot": args.to, "paths": args.paths });
    let answer = client.post(&format!("/api/v1/sandboxes/{id}/revert"), &body).await?;
    if args.format.json {
        print::json(&answer)?;
        return Ok(Exit::Ok);
    }
    let Reverted { reverted } = client.read(answer)?;
    reverted.iter().try_for_each(|path| print::line(path))?;
    Ok(Exit::Ok)
}
