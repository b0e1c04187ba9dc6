//! `sandkeep create`.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::publish::PublishArgs;
use crate::cli::spec_args::{KeptArgs, SpecArgs};
use crate::cli::{Format, print, spinner};
use sandkeep_client::Client;
use sandkeep_core::api::Sandbox;
use serde_json::Value;

/// Create a sandbox and print its id
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    pub kept: KeptArgs,
    #[command(flatten)]
    publish: PublishArgs,
    #[command(flatten)]
    format: Format,
}

pub async fn run(mut args: Args, client: &Client) -> Result<Exit, Failure> {
    let source = std::mem::take(&mut args.spec.source).send(client).await?;
    let mut body = args.spec.into_json_with(args.kept)?;
    if let Some(source) = source {
        body["source"] = source;
    }
    let made = client.post::<Value>("/api/v1/sandboxes", &body);
    let created = spinner::during("creating", made).await?;
    let sandbox: Sandbox = client.read(created.clone())?;
    args.publish.open(&sandbox.id, client).await?;
    if args.format.json {
        print::json(&created)?
    } else {
        print::line(sandbox.id.as_str())?
    }
    Ok(Exit::Ok)
}
