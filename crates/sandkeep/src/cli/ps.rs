//! `sandkeep ps`: lists the execs and the processes of a sandbox.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::ls::OrderArgs;
use crate::cli::{Format, print, processes};
use sandkeep_client::Client;
use sandkeep_core::api::{Exec, Process};
use sandkeep_core::{ExecId, SandboxId};

/// How much of a command is shown.
const COMMAND_MAX_CHARS: usize = 60;

/// List the running and recent execs and processes of a sandbox
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    #[command(flatten)]
    order: OrderArgs,
    /// Print only the ids
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
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
    let processes = processes_of(client, &id).await?;
    if args.quiet {
        execs.iter().try_for_each(|exec| print::line(&row(exec, &processes)[0]))?;
        return Ok(Exit::Ok);
    }
    let rows = execs.iter().map(|exec| row(exec, &processes));
    print::table(["ID", "KIND", "STATUS", "STARTED", "COMMAND"], rows)?;
    Ok(Exit::Ok)
}

/// A process is an exec, which has its output; these are the execs that are processes.
async fn processes_of(
    client: &Client,
    id: &SandboxId,
) -> Result<BTreeMap<ExecId, Process>, Failure> {
    let all = client.processes(id).await?.items;
    Ok(all.into_iter().map(|process| (process.process.exec_id.clone(), process)).collect())
}

fn row(exec: &Exec, processes: &BTreeMap<ExecId, Process>) -> [String; 5] {
    let (id, kind, status) = match processes.get(&exec.exec_id) {
        Some(process) => (process.process.id.to_string(), "process", processes::status(process)),
        None => {
            let kind = if exec.shell_id.is_some() { "shell" } else { "exec" };
            (exec.exec_id.to_string(), kind, status(exec))
        }
    };
    let started = format!("{:.0}", exec.started_at);
    [id, kind.to_owned(), status, started, shown(exec.argv.join(" "))]
}

fn status(exec: &Exec) -> String {
    match (exec.exit_code, exec.signal) {
        (Some(code), _) => format!("exited ({code})"),
        (_, Some(signal)) => format!("signaled ({signal})"),
        _ => exec.status.as_str().to_owned(),
    }
}

fn shown(command: String) -> String {
    let line: String = command.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() > COMMAND_MAX_CHARS {
        line.chars().take(COMMAND_MAX_CHARS - 1).chain(['…']).collect()
    } else {
        line
    }
}
