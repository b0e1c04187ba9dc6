//! `sandkeep log`.

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::show::{mebibytes, words};
use crate::cli::{Format, print};
use sandkeep_client::{Client, Items};
use sandkeep_core::api::{Happening, LogEntry};
use sandkeep_core::event::FileChanged;

/// Show the history of a sandbox: states, turns, snapshots, rollbacks, reverts, forks, execs, changed files
#[derive(Debug, clap::Args)]
pub struct LogArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Number of most recent entries to show
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
    let Items { items, .. } = client.read(log)?;
    print::table(["WHEN", "WHAT", "DETAILS"], items.into_iter().map(row))?;
    Ok(Exit::Ok)
}

fn row(entry: LogEntry) -> [String; 3] {
    let named = json!(entry.what);
    let event = words(&named["event"]).replace('_', " ");
    [format!("{:.0}", entry.at), event, details(entry.what)]
}

fn details(what: Happening) -> String {
    let parts = match what {
        Happening::Created { runtime, template } => vec![runtime, template],
        Happening::ForkedFrom { sandbox, snapshot } => vec![sandbox.to_string(), words(snapshot)],
        Happening::Forked { sandboxes, snapshot } => {
            vec![
                words(snapshot),
                sandboxes.iter().map(|id| id.as_str()).collect::<Vec<_>>().join(" "),
            ]
        }
        Happening::Exec { argv, status, exit_code, signal, duration_ms, .. } => {
            let ended = match (exit_code, signal) {
                (Some(code), _) => format!("exit {code}"),
                (_, Some(signal)) => format!("signal {signal}"),
                _ => status,
            };
            let ended = match duration_ms {
                Some(ms) => format!("{ended} after {:.1} s", ms as f64 / 1000.0),
                None => ended,
            };
            vec![ended, argv.join(" ").replace('\n', " ")]
        }
        Happening::Snapshot { name, bytes, note, .. }
        | Happening::Turn { name, bytes, note, .. } => {
            vec![name.to_string(), mebibytes(bytes), words(note)]
        }
        Happening::SnapshotDeleted { name }
        | Happening::SnapshotPruned { name }
        | Happening::RolledBack { name } => vec![name.to_string()],
        Happening::NetworkDenied { host, port, reason, count } => {
            let to = port.map_or(host.clone(), |port| format!("{host}:{port}"));
            let times = if count > 1 { format!("{count} times") } else { String::new() };
            vec![to, reason, times]
        }
        Happening::NetworkDecided { host, port, choice } => {
            vec![format!("{host}:{port}"), words(choice)]
        }
        Happening::Reverted { name, paths, count, by } => {
            let first: Vec<&str> = paths.iter().take(3).map(String::as_str).collect();
            let more = usize::try_from(count).unwrap_or(usize::MAX).saturating_sub(first.len());
            let more = if more > 0 { format!("and {more} more") } else { String::new() };
            vec![first.join(" "), more, format!("to {name}"), format!("by {by}")]
        }
        Happening::FileChanged(FileChanged { change, path, to, by, tool }) => {
            let moved = to.map_or(path.clone(), |to| format!("{path} to {to}"));
            let tool = tool.map_or(String::new(), |tool| format!("with {tool}"));
            vec![change.as_str().to_owned(), moved, tool, format!("by {by}")]
        }
        Happening::Stopped { reason } | Happening::Paused { reason } => vec![words(reason)],
        Happening::Failed { reason } | Happening::RevertFailed { reason } => vec![reason],
        Happening::Started | Happening::Resumed | Happening::NetworkChanged => Vec::new(),
    };
    let said: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    // A file may be called anything.
    said.join("  ").replace(char::is_control, " ")
}
