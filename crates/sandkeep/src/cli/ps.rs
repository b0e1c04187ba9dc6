//! `sandkeep ps`: lists the execs of a sandbox.

use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::ls::OrderArgs;
use crate::cli::{Format, print};
use sandkeep_client::Client;
use sandkeep_core::api::Exec;

/// How much of a command is shown.
const COMMAND_MAX_CHARS: usize = 60;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let path = format!("/api/v1/sandboxes/{id}/execs");
    let query = args.order.query();
    if args.format.json {
        let execs: Vec<Value> = client.list(&path, &query, None).await?;
        print::json(&json!({ "items": execs }))?;
        return Ok(Exit::Ok);
    }
    let execs: Vec<Exec> = client.list(&path, &query, None).await?;
    print::table(["EXEC", "STATUS", "STARTED", "COMMAND"], execs.iter().map(row))?;
    Ok(Exit::Ok)
}

fn row(exec: &Exec) -> [String; 4] {
    let status = match (exec.exit_code, exec.signal) {
        (Some(code), _) => format!("exited ({code})"),
        (_, Some(signal)) => format!("signaled ({signal})"),
        _ => exec.status.as_str().to_owned(),
    };
    let started = format!("{:.0}", exec.started_at);
    [exec.exec_id.to_string(), status, started, shown(exec.argv.join(" "))]
}

fn shown(command: String) -> String {
    let line: String = command.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.chars().count() > COMMAND_MAX_CHARS {
        true => line.chars().take(COMMAND_MAX_CHARS - 1).chain(['…']).collect(),
        false => line,
    }
}
