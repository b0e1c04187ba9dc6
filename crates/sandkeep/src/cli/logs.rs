//! `sandkeep logs`: what an exec said, and says.

use crate::cli::events;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use sandkeep_client::Client;

/// Print what an exec said
///
/// Its stdout goes to stdout and its stderr to stderr. How it ended is told by `sandkeep ps`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Go on until the exec ends
    #[arg(long, short = 'f')]
    follow: bool,
    /// The sandbox's id, or the beginning of it
    id: String,
    /// The exec's id, or the beginning of it
    exec: String,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let exec = client.resolve_exec(&id, &args.exec).await?;
    let path = format!("/api/v1/sandboxes/{id}/execs/{exec}/output");
    let follow = if args.follow { "true" } else { "false" };
    let response = client.get_live(&path, &[("follow", follow)]).await?;
    events::follow(client, response).await?;
    Ok(Exit::Ok)
}
