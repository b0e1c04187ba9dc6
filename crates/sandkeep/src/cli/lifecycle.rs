//! `sandkeep start` and `sandkeep stop`: verbs that take a sandbox and nothing else.

use serde_json::json;

use crate::cli::client::Client;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print, spinner};
use crate::sandbox::Verb;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id, or the beginning of it
    id: String,
    #[command(flatten)]
    format: Format,
}

pub async fn run(verb: Verb, args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let (path, nothing) = (format!("/api/v1/sandboxes/{id}/{verb}"), json!({}));
    let doing = if verb == Verb::Stop { "stopping" } else { "starting" };
    let sandbox = spinner::during(doing, client.post(&path, &nothing)).await?;
    match args.format.json {
        true => print::json(&sandbox)?,
        false => print::line(id.as_str())?,
    }
    Ok(Exit::Ok)
}
