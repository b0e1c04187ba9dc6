//! `sandkeep process ls`, also as `sandkeep processes`.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::show::words;
use crate::cli::{Format, print};
use sandkeep_client::{Client, Items};
use sandkeep_core::api::Process;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
    pub id: String,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let answer = client.get(&format!("/api/v1/sandboxes/{id}/processes")).await?;
    if args.format.json {
        print::json(&answer)?;
        return Ok(Exit::Ok);
    }
    let Items { items, .. } = client.read(answer)?;
    print::table(["ID", "STATUS", "ADDRESS", "COMMAND"], items.iter().map(row))?;
    Ok(Exit::Ok)
}

/// Its status, and how it ended.
pub fn status(shown: &Process) -> String {
    let process = &shown.process;
    match (process.exit_code, process.signal, process.outcome) {
        (Some(code), _, _) => format!("exited ({code})"),
        (_, Some(signal), _) => format!("exited (signal {signal})"),
        (_, _, Some(outcome)) => format!("exited ({})", outcome.as_str()),
        _ => words(process.status),
    }
}

fn row(shown: &Process) -> [String; 4] {
    let process = &shown.process;
    let address = shown.address.map_or("-".to_owned(), |address| address.to_string());
    [process.id.to_string(), status(shown), address, process.argv.join(" ")]
}
