//! `sandkeep ps`: the execs of a sandbox.

use serde_json::{Value, json};

use crate::cli::client::Client;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};

/// How much of a command is shown.
const COMMAND_MAX_CHARS: usize = 60;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id, or the beginning of it
    id: String,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let execs = client.execs(&id).await?;
    match args.format.json {
        true => print::json(&json!({ "items": execs }))?,
        false => {
            print::table(["EXEC", "STATUS", "STARTED", "COMMAND"], execs.iter().map(row))?;
        }
    }
    Ok(Exit::Ok)
}

fn row(exec: &Value) -> [String; 4] {
    let text = |name: &str| exec[name].as_str().unwrap_or_default().to_owned();
    let status = match (&exec["exit_code"], &exec["signal"]) {
        (Value::Number(code), _) => format!("exited ({code})"),
        (_, Value::Number(signal)) => format!("signaled ({signal})"),
        _ => text("status"),
    };
    let started = text("started_at");
    let seconds = started.split('.').next().unwrap_or_default().trim_end_matches('Z');
    let words = exec["argv"].as_array().into_iter().flatten().filter_map(Value::as_str);
    [text("exec_id"), status, format!("{seconds}Z"), shown(words.collect::<Vec<_>>().join(" "))]
}

/// One line of it, and not all of that if it is long.
fn shown(command: String) -> String {
    let line: String = command.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.chars().count() > COMMAND_MAX_CHARS {
        true => line.chars().take(COMMAND_MAX_CHARS - 1).chain(['…']).collect(),
        false => line,
    }
}
