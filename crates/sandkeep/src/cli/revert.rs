//! `sandkeep revert`: restores some files.

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use sandkeep_client::Client;
use sandkeep_core::{SnapshotName, api::Reverted};

/// Restore files and directories from a snapshot
///
/// Creates, replaces or deletes the named paths so that they match the snapshot. Nothing else changes, and
/// processes keep running. Prints the paths that were changed.
#[derive(Debug, clap::Args)]
pub struct RevertArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Snapshot name, id or unique prefix of an id
    #[arg(long, value_name = "SNAPSHOT")]
    to: SnapshotName,
    /// Paths in the sandbox
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: RevertArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let snapshot = client.resolve_snapshot(&id, &args.to).await?;
    let body = json!({ "snapshot": snapshot, "paths": args.paths });
    let answer = client.post(&format!("/api/v1/sandboxes/{id}/revert"), &body).await?;
    if args.format.json {
        print::json(&answer)?;
        return Ok(Exit::Ok);
    }
    let Reverted { reverted } = client.read(answer)?;
    reverted.iter().try_for_each(|path| print::line(path))?;
    Ok(Exit::Ok)
}
