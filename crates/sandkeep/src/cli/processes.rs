//! `sandkeep processes`.

use serde_json::Value;

use crate::cli::client::Client;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id, or the beginning of it
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
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    print::table(["ID", "STATUS", "ADDRESS", "COMMAND"], items.iter().map(row))?;
    Ok(Exit::Ok)
}

fn row(process: &Value) -> [String; 4] {
    let word = |name: &str| process[name].as_str().unwrap_or("-").to_owned();
    let status = match (&process["exit_code"], &process["signal"], &process["outcome"]) {
        (Value::Number(code), _, _) => format!("exited ({code})"),
        (_, Value::Number(signal), _) => format!("exited (signal {signal})"),
        (_, _, Value::String(outcome)) => format!("exited ({outcome})"),
        _ => word("status"),
    };
    let argv = process["argv"].as_array().into_iter().flatten().filter_map(Value::as_str);
    [word("id"), status, word("address"), argv.collect::<Vec<_>>().join(" ")]
}
