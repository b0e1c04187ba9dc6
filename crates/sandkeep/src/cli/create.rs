//! `sandkeep create`.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::spec_args::{KeptArgs, SpecArgs};
use crate::cli::{Format, print, spinner};
use sandkeep_client::Client;
use sandkeep_core::api::Sandbox;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    pub kept: KeptArgs,
    #[command(flatten)]
    format: Format,
}

pub async fn run(mut args: Args, client: &Client) -> Result<Exit, Failure> {
    let source = std::mem::take(&mut args.spec.source).send(client).await?;
    let mut body = args.spec.into_json_with(args.kept);
    if let Some(source) = source {
        body["source"] = source;
    }
    let created = spinner::during("creating", client.post("/api/v1/sandboxes", &body)).await?;
    match args.format.json {
        true => print::json(&created)?,
        false => print::line(client.read::<Sandbox>(created)?.id.as_str())?,
    }
    Ok(Exit::Ok)
}
