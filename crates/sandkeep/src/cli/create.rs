//! `sandkeep create`.

use crate::cli::client::Client;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::spec_args::SpecArgs;
use crate::cli::{Format, print};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let created = client.post("/api/v1/sandboxes", &args.spec.into_json()).await?;
    match args.format.json {
        true => print::json(&created)?,
        false => print::line(client.sandbox(&created)?.id.as_str())?,
    }
    Ok(Exit::Ok)
}
