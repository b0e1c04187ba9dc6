//! `sandkeep rollback`.

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::lifecycle;
use sandkeep_client::Client;
use sandkeep_core::SnapshotName;

/// Bring the files of a sandbox back to a snapshot; its processes end
///
/// A sandbox that was paused or has failed is running afterwards; one that is stopped stays stopped.
#[derive(Debug, clap::Args)]
pub struct RollbackArgs {
    #[command(flatten)]
    subject: lifecycle::Args,
    /// The snapshot's name or id
    #[arg(value_name = "SNAPSHOT")]
    snapshot: SnapshotName,
    /// End execs that run, too
    #[arg(long, short = 'f')]
    force: bool,
}

pub async fn run(args: RollbackArgs, client: &Client) -> Result<Exit, Failure> {
    let body = json!({ "snapshot": args.snapshot, "force": args.force });
    lifecycle::ask("rollback", "rolling back", args.subject, &body, client).await
}
