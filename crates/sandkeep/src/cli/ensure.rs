//! `sandkeep ensure`.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::spec_args::{KeptArgs, SpecArgs};
use crate::cli::{Format, print, spinner};
use sandkeep_client::Client;
use sandkeep_core::api::Ensured;

/// Print the id of the sandbox in a slot; create or replace it if necessary
///
/// A healthy sandbox is returned unchanged, whatever the other options say. A stopped one is started, a failed
/// one replaced. Repeated and concurrent calls are safe.
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
    if args.kept.slot.is_none() {
        let problem = "--slot NAME is needed: it is how ensure knows the sandbox again".to_owned();
        return Err(Failure::Usage { problem });
    }
    let source = std::mem::take(&mut args.spec.source).send(client).await?;
    let mut body = args.spec.into_json_with(args.kept)?;
    if let Some(source) = source {
        body["source"] = source;
    }
    let request = client.post("/api/v1/sandboxes/ensure", &body);
    let ensured = spinner::during("ensuring", request).await?;
    if args.format.json {
        print::json(&ensured)?
    } else {
        print::line(client.read::<Ensured>(ensured)?.sandbox.id.as_str())?
    }
    Ok(Exit::Ok)
}
