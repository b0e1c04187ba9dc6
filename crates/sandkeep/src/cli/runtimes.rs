//! `sandkeep runtimes`.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use sandkeep_client::{Client, Runtime, Runtimes};

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
    let Runtimes { runtimes } = client.read(answer)?;
    print::table(["NAME", "USABLE", "BATTERY", "CAN"], runtimes.iter().map(row))?;
    Ok(Exit::Ok)
}

fn row(runtime: &Runtime) -> [String; 4] {
    let name = match runtime.default {
        true => format!("{} (default)", runtime.name),
        false => runtime.name.clone(),
    };
    let usable = match &runtime.reason {
        Some(reason) => format!("no: {reason}"),
        None => "yes".to_owned(),
    };
    // Some are there twice, once in the spelling of other clients.
    let ours = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let can: Vec<&str> = runtime.can().filter(|name| ours(name)).collect();
    let battery = runtime.battery.as_ref().map_or("not run".to_owned(), |b| b.verdict.clone());
    [name, usable, battery, can.join(" ")]
}
