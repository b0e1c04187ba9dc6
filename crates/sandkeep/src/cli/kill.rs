//! `sandkeep kill`: sends a signal to an exec.

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;
use sandkeep_client::Client;
use sandkeep_core::Signal;

/// Send a signal to an exec or a process, or kill its process tree
///
/// The signal goes to the first process of the exec. `--all` kills its whole process tree. Prints the id of the exec.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Signal name or number [default: SIGTERM]
    #[arg(long, short = 's', value_name = "SIGNAL")]
    signal: Option<Signal>,
    /// Kill the whole process tree, with SIGKILL
    #[arg(long, conflicts_with = "signal")]
    all: bool,
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Exec id, process id or unique prefix
    exec: String,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let exec = client.resolve_exec(&id, &args.exec).await?;
    let path = format!("/api/v1/sandboxes/{id}/execs/{exec}");
    if args.all {
        client.delete(&path).await?
    } else {
        let signal = args.signal.unwrap_or(Signal::TERM).number();
        client.tell(&format!("{path}/signal"), &json!({ "signal": signal })).await?;
    }
    print::line(exec.as_str())?;
    Ok(Exit::Ok)
}
