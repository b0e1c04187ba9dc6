//! `sandkeep ls`.

use serde_json::{Value, json};

use crate::cli::client::{Client, Sandbox};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::filter::Filter;
use crate::cli::{Format, print};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub filter: Filter,
    /// No more than this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let limit = args.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let sandboxes = client.sandboxes(&args.filter, limit).await?;
    if args.format.json {
        let items: Vec<Value> = sandboxes.into_iter().map(|(_, value)| value).collect();
        print::json(&json!({ "items": items }))?;
        return Ok(Exit::Ok);
    }
    let rows = sandboxes.iter().map(|(sandbox, _)| row(sandbox));
    print::table(["ID", "STATE", "RUNTIME", "TEMPLATE", "SLOT", "CREATED"], rows)?;
    Ok(Exit::Ok)
}

/// `2026-11-15T21:30:00.123456Z` without its fraction.
fn to_seconds(time: &str) -> String {
    match time.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => time.to_owned(),
    }
}

fn row(sandbox: &Sandbox) -> [String; 6] {
    [
        sandbox.id.to_string(),
        sandbox.condition(),
        sandbox.runtime.clone(),
        sandbox.template.clone(),
        sandbox.slot.clone().unwrap_or_else(|| "-".to_owned()),
        to_seconds(&sandbox.created_at),
    ]
}
