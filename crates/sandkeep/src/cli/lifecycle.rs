//! `sandkeep start`, `stop` and `resume`: verbs that take a sandbox and nothing else.

use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print, spinner};
use sandkeep_client::Client;
use sandkeep_core::Verb;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    #[command(flatten)]
    format: Format,
}

pub async fn run(verb: Verb, args: Args, client: &Client) -> Result<Exit, Failure> {
    let doing = match verb {
        Verb::Stop => "stopping",
        Verb::Resume => "resuming",
        _ => "starting",
    };
    ask(&verb.to_string(), doing, args, &json!({}), client).await
}

/// Requests a verb and shows the sandbox afterwards.
pub async fn ask(
    verb: &str,
    doing: &'static str,
    args: Args,
    body: &Value,
    client: &Client,
) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let path = format!("/api/v1/sandboxes/{id}/{verb}");
    let sandbox = spinner::during(doing, client.post(&path, body)).await?;
    match args.format.json {
        true => print::json(&sandbox)?,
        false => print::line(id.as_str())?,
    }
    Ok(Exit::Ok)
}
