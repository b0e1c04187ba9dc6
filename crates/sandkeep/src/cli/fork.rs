//! `sandkeep fork`.

use std::collections::BTreeMap;

use serde_json::json;

use crate::cli::argument::pair;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print, spinner};
use sandkeep_client::Client;
use sandkeep_core::{SnapshotName, api::Forks};

/// Create new sandboxes with the files of an existing one
///
/// Copies the current files, or those of a snapshot. Processes are not copied. Either all forks are created or none.
#[derive(Debug, clap::Args)]
pub struct ForkArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Snapshot name, id or unique prefix of an id [default: the current files]
    #[arg(long, short = 's', value_name = "SNAPSHOT")]
    snapshot: Option<SnapshotName>,
    /// Name of the fork, if it is only one
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Number of forks
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    count: usize,
    /// Label for the forks, in addition to the sandbox's own; repeatable
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: ForkArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let labels: BTreeMap<_, _> = args.labels.into_iter().collect();
    let mut body = json!({ "count": args.count, "labels": labels });
    if let Some(snapshot) = args.snapshot {
        body["snapshot"] = json!(client.resolve_snapshot(&id, &snapshot).await?);
    }
    if let Some(name) = args.name {
        body["name"] = json!(name);
    }
    let path = format!("/api/v1/sandboxes/{id}/fork");
    let answer = spinner::during("forking", client.post(&path, &body)).await?;
    if args.format.json {
        print::json(&answer)?;
        return Ok(Exit::Ok);
    }
    let Forks { items: sandboxes, .. } = client.read(answer)?;
    sandboxes.iter().try_for_each(|sandbox| print::line(sandbox.id.as_str()))?;
    Ok(Exit::Ok)
}
