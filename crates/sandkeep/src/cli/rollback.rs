//! `sandkeep rollback`.

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::lifecycle;
use sandkeep_client::Client;
use sandkeep_core::SnapshotName;

/// Restore all files of a sandbox from a snapshot; its processes end
///
/// A running, paused or failed sandbox runs afterwards; a stopped one stays stopped.
#[derive(Debug, clap::Args)]
pub struct RollbackArgs {
    #[command(flatten)]
    subject: lifecycle::Args,
    /// Snapshot name, id or unique prefix of an id
    #[arg(value_name = "SNAPSHOT")]
    snapshot: SnapshotName,
    /// Kill running execs instead of refusing
    #[arg(long, short = 'f')]
    force: bool,
}

pub async fn run(args: RollbackArgs, client: &Client) -> Result<Exit, Failure> {
    let RollbackArgs { mut subject, snapshot, force } = args;
    let id = client.resolve(&subject.id).await?;
    let snapshot = client.resolve_snapshot(&id, &snapshot).await?;
    subject.id = id.into();
    let body = json!({ "snapshot": snapshot, "force": force });
    lifecycle::ask("rollback", "rolling back", subject, &body, client).await
}
