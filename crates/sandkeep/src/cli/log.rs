//! `sandkeep log`.

use serde_json::Value;

use crate::cli::client::Client;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::show::{mebibytes, words};
use crate::cli::{Format, print};

/// What happened to a sandbox: states, turns, snapshots, rollbacks, forks, execs
#[derive(Debug, clap::Args)]
pub struct LogArgs {
    /// The sandbox's id, or the beginning of it
    id: String,
    /// How many entries, the last ones
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    limit: usize,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: LogArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let limit = args.limit.to_string();
    let path = format!("/api/v1/sandboxes/{id}/log");
    let log = client.get_query(&path, &[("limit", &limit)]).await?;
    if args.format.json {
        print::json(&log)?;
        return Ok(Exit::Ok);
    }
    let items = log["items"].as_array().into_iter().flatten();
    print::table(["WHEN", "WHAT", "DETAILS"], items.map(row))?;
    Ok(Exit::Ok)
}

fn row(entry: &Value) -> [String; 3] {
    let event = words(&entry["event"]).replace('_', " ");
    [to_the_second(&words(&entry["at"])), event, details(entry)]
}

/// A timestamp without what no reader of a list looks at.
fn to_the_second(at: &str) -> String {
    match at.split_once('.') {
        Some((second, _)) => format!("{second}Z"),
        None => at.to_owned(),
    }
}

fn details(entry: &Value) -> String {
    let word = |name: &str| words(&entry[name]);
    let parts = match entry["event"].as_str().unwrap_or_default() {
        "created" => vec![word("runtime"), word("template")],
        "exec" => vec![ending(entry), command(entry)],
        "forked" => {
            let ids = entry["sandboxes"].as_array().into_iter().flatten();
            vec![word("snapshot"), ids.map(words).collect::<Vec<_>>().join(" ")]
        }
        "forked_from" => vec![word("sandbox"), word("snapshot")],
        _ => vec![word("name"), mebibytes(&entry["bytes"]), word("reason"), word("note")],
    };
    let said: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    said.join("  ")
}

/// How an exec ended, and how long it took.
fn ending(exec: &Value) -> String {
    let ended = match (&exec["exit_code"], &exec["signal"]) {
        (Value::Number(code), _) => format!("exit {code}"),
        (_, Value::Number(signal)) => format!("signal {signal}"),
        _ => words(&exec["status"]),
    };
    match exec["duration_ms"].as_f64() {
        Some(ms) => format!("{ended} after {:.1} s", ms / 1000.0),
        None => ended,
    }
}

fn command(exec: &Value) -> String {
    let argv = exec["argv"].as_array().into_iter().flatten().map(words);
    argv.collect::<Vec<_>>().join(" ").replace('\n', " ")
}
