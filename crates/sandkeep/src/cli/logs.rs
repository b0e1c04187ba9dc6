//! `sandkeep logs`: the output of an exec.

use crate::cli::events;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use sandkeep_client::Client;

/// Print the output of an exec
///
/// Its stdout goes to stdout and its stderr to stderr. `sandkeep ps` shows its exit code.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Follow the output until the exec ends
    #[arg(long, short = 'f')]
    follow: bool,
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Exec id or unique prefix
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
