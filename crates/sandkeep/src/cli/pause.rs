//! `sandkeep pause`.

use serde_json::json;

use crate::cli::argument::seconds;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::lifecycle;
use sandkeep_client::Client;

/// Let all processes of a sandbox stand still, until `sandkeep resume`
///
/// Execs that run may end first. If they do not in time, nothing happens and they are named.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    subject: lifecycle::Args,
    /// Let execs that run stand still as they are
    #[arg(long, short = 'f', conflicts_with = "drain")]
    force: bool,
    /// How long execs may take to end, such as 30 (seconds) or 5m [default: 10]
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    drain: Option<u64>,
}

pub async fn run(args: PauseArgs, client: &Client) -> Result<Exit, Failure> {
    let body = match (args.force, args.drain) {
        (true, _) => json!({ "force": true }),
        (false, Some(secs)) => json!({ "drain_secs": secs }),
        (false, None) => json!({}),
    };
    lifecycle::ask("pause", "pausing", args.subject, &body, client).await
}
