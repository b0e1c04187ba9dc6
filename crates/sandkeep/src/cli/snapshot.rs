//! `sandkeep snapshot`, `snapshots` and `turn`.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::ls::OrderArgs;
use crate::cli::show::mebibytes;
use crate::cli::{Format, print, spinner};
use sandkeep_client::{Client, Items};
use sandkeep_core::{SnapshotName, api::Snapshot};

/// Take a snapshot of a sandbox's files, or delete snapshots
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    command: Option<SnapshotCommand>,
    /// Sandbox name, id or unique prefix of an id
    #[arg(required = true)]
    id: Option<String>,
    /// Name of the snapshot [default: its id]
    #[arg(long, value_name = "NAME")]
    name: Option<SnapshotName>,
    /// Note to store with the snapshot
    #[arg(long, short = 'm', value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Subcommand)]
enum SnapshotCommand {
    /// Delete snapshots
    Rm(RmArgs),
}

#[derive(Debug, clap::Args)]
pub struct TurnArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Note to store with the turn
    #[arg(long, short = 'm', value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Snapshot names or ids
    #[arg(required = true, value_name = "SNAPSHOT")]
    snapshots: Vec<SnapshotName>,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: SnapshotArgs, client: &Client) -> Result<Exit, Failure> {
    let SnapshotArgs { command, id, name, note, format } = args;
    if let Some(SnapshotCommand::Rm(args)) = command {
        return rm(args, client).await;
    }
    let id = id.expect("clap asks for it unless there is a subcommand");
    let mut body = json!({});
    if let Some(name) = name {
        body["name"] = json!(name);
    }
    let subject = TurnArgs { id, note, format };
    seal("snapshots", "making a snapshot", subject, body, client).await
}

pub async fn turn(args: TurnArgs, client: &Client) -> Result<Exit, Failure> {
    seal("turns", "sealing a turn", args, json!({}), client).await
}

async fn seal(
    what: &str,
    doing: &'static str,
    args: TurnArgs,
    mut body: Value,
    client: &Client,
) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    if let Some(note) = args.note {
        body["note"] = json!(note);
    }
    let path = format!("/api/v1/sandboxes/{id}/{what}");
    let snapshot = spinner::during(doing, client.post(&path, &body)).await?;
    if args.format.json {
        print::json(&snapshot)?
    } else {
        print::line(client.read::<Snapshot>(snapshot)?.name.as_str())?
    }
    Ok(Exit::Ok)
}

pub async fn list(args: ListArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let path = format!("/api/v1/sandboxes/{id}/snapshots");
    let answer = client.get_query(&path, &args.order.query()).await?;
    if args.format.json {
        print::json(&answer)?;
        return Ok(Exit::Ok);
    }
    let Items { items, .. } = client.read(answer)?;
    let row = |item: Snapshot| {
        let created = item.created_at.to_string();
        let (name, id) = (item.name.to_string(), item.id.to_string());
        [name, id, mebibytes(item.bytes), created, item.note.unwrap_or_default()]
    };
    print::table(["NAME", "ID", "SIZE", "CREATED", "NOTE"], items.into_iter().map(row))?;
    Ok(Exit::Ok)
}

async fn rm(args: RmArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let mut failed = 0;
    for text in &args.snapshots {
        let deleted = async {
            let name = client.resolve_snapshot(&id, text).await?;
            client.delete_snapshot(&id, &name).await.map(|()| name)
        };
        match deleted.await {
            Ok(name) => print::line(name.as_str())?,
            Err(error) if args.snapshots.len() == 1 => return Err(error.into()),
            Err(error) => {
                print::note(&Failure::from(error).line());
                failed += 1;
            }
        }
    }
    match failed {
        0 => Ok(Exit::Ok),
        failed => Err(Failure::Some { failed, all: args.snapshots.len() }),
    }
}
