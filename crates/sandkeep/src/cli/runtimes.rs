//! `sandkeep runtimes`.

use serde_json::Value;

use crate::cli::client::Client;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let answer = client.get("/api/v1/runtimes").await?;
    if args.format.json {
        print::json(&answer)?;
        return Ok(Exit::Ok);
    }
    let runtimes = answer["runtimes"].as_array().map(Vec::as_slice).unwrap_or_default();
    print::table(["NAME", "USABLE", "BATTERY", "CAN"], runtimes.iter().map(row))?;
    Ok(Exit::Ok)
}

fn row(runtime: &Value) -> [String; 4] {
    let name = runtime["name"].as_str().unwrap_or_default();
    let name =
        if runtime["default"] == true { format!("{name} (default)") } else { name.to_owned() };
    let usable = match runtime["reason"].as_str() {
        Some(reason) => format!("no: {reason}"),
        None => "yes".to_owned(),
    };
    let has = runtime["capabilities"].as_object().into_iter().flatten();
    // Some are there twice, once in the spelling of other clients.
    let ours = has.filter(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
    let can: Vec<&str> =
        ours.filter(|(_, can)| **can == true).map(|(name, _)| name.as_str()).collect();
    let battery = runtime["battery"]["verdict"].as_str().unwrap_or("not run").to_owned();
    [name, usable, battery, can.join(" ")]
}
