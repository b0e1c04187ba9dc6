//! `sandkeep ls`.

use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::filter::Filter;
use crate::cli::show::words;
use crate::cli::{Format, print};
use sandkeep_client::Client;
use sandkeep_core::api::{Order, Sandbox};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub filter: Filter,
    /// List at most this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    format: Format,
}

/// In which order to list.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OrderArgs {
    /// The newest first instead of the oldest
    #[arg(long, short)]
    reverse: bool,
}

impl OrderArgs {
    pub fn query(self) -> Vec<(&'static str, String)> {
        match self.reverse {
            true => vec![("sort", Order::NewestFirst.as_str().to_owned())],
            false => Vec::new(),
        }
    }
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let limit = args.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let path = "/api/v1/sandboxes";
    let mut query = args.filter.query();
    query.extend(args.order.query());
    if args.format.json {
        let items: Vec<Value> = client.list(path, &query, limit).await?;
        print::json(&json!({ "items": items }))?;
        return Ok(Exit::Ok);
    }
    let sandboxes: Vec<Sandbox> = client.list(path, &query, limit).await?;
    let rows = sandboxes.iter().map(row);
    print::table(["ID", "NAME", "STATE", "RUNTIME", "TEMPLATE", "SLOT", "CREATED"], rows)?;
    Ok(Exit::Ok)
}

/// The state, the operation in progress and the reason, in a few words.
pub fn condition(sandbox: &Sandbox) -> String {
    let mut text = words(sandbox.state);
    if let Some(operation) = sandbox.operation {
        text = format!("{text} ({} in progress)", words(operation));
    }
    match &sandbox.reason {
        Some(reason) => format!("{text}: {reason}"),
        None => text,
    }
}

fn row(sandbox: &Sandbox) -> [String; 7] {
    [
        sandbox.id.to_string(),
        sandbox.name.to_string(),
        condition(sandbox),
        sandbox.runtime.clone(),
        sandbox.template.clone(),
        sandbox.slot.as_ref().map_or("-".to_owned(), ToString::to_string),
        format!("{:.0}", sandbox.created_at),
    ]
}
