//! `sandkeep rm`.

use std::collections::BTreeSet;

use serde_json::json;

use crate::cli::client::Client;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use crate::sandbox::SandboxId;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Ids of sandboxes, or the beginnings of them
    #[arg(required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    format: Format,
}

/// Destroys all it can; one that cannot be destroyed does not save the others.
pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let ids: BTreeSet<&String> = args.ids.iter().collect();
    let all = ids.len();
    let mut destroyed = Vec::new();
    for text in ids {
        match destroy(client, text).await {
            Ok(id) => destroyed.push(id),
            Err(failure) if all == 1 => return Err(failure),
            Err(failure) => print::note(&failure.line()),
        }
    }
    match args.format.json {
        true => print::json(&json!({ "destroyed": destroyed }))?,
        false => destroyed.iter().try_for_each(|id| print::line(id.as_str()))?,
    }
    match all - destroyed.len() {
        0 => Ok(Exit::Ok),
        failed => Err(Failure::Some { failed, all }),
    }
}

async fn destroy(client: &Client, text: &str) -> Result<SandboxId, Failure> {
    let id = client.resolve(text).await?;
    client.delete(&format!("/api/v1/sandboxes/{id}")).await?;
    Ok(id)
}
