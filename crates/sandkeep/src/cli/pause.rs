//! `sandkeep pause`.

use serde_json::json;

use crate::cli::argument::seconds;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{lifecycle, several};
use sandkeep_client::Client;
use sandkeep_core::State;

/// Freeze all processes of sandboxes until `sandkeep resume`
///
/// Waits for running execs to end first. If they do not end in time, nothing is frozen and they are listed.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    subjects: lifecycle::SeveralArgs,
    /// Freeze running execs instead of waiting for them
    #[arg(long, short = 'f', conflicts_with = "drain")]
    force: bool,
    /// How long to wait for running execs, such as 30 (seconds) or 5m [default: 10]
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    drain: Option<u64>,
}

pub async fn run(args: PauseArgs, client: &Client) -> Result<Exit, Failure> {
    let body = match (args.force, args.drain) {
        (true, _) => json!({ "force": true }),
        (false, Some(secs)) => json!({ "drain_secs": secs }),
        (false, None) => json!({}),
    };
    let lifecycle::SeveralArgs { subjects, format } = args.subjects;
    let chosen = subjects.choose(&[State::Running], client).await?;
    several::ask("pause", "pausing", chosen, &body, format, client).await?;
    Ok(Exit::Ok)
}
