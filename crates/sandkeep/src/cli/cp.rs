//! `sandkeep cp`: copies files and trees into and out of a sandbox.

mod down;
mod place;
mod up;

use std::ffi::OsString;
use std::pin::pin;

use tokio_util::sync::CancellationToken;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::run::signals::Signals;
use crate::cli::tool_config::GuardArgs;
use sandkeep_client::Client;

use place::{End, Remote};

/// Copy files and directories into or out of a sandbox
///
/// Either SRC or DST is in a sandbox: ID:PATH, where ID is its name or id, and PATH is absolute or relative to the
/// sandbox's working directory. A local path with a colon is written with ./ before it.
/// A directory is copied recursively: into DST if DST is a directory, otherwise as DST. SRC/. copies only the contents
/// of a directory. `-` is stdin or stdout: the bytes of a file, or a tar archive of a directory. Files that make tools on
/// this machine run commands (.git/config, hooks, .envrc, .vscode) are not copied out of a sandbox, and nothing beside
/// them, unless --allow-tool-config is given.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Source: PATH, ID:PATH, or -
    #[arg(value_name = "SRC")]
    source: OsString,
    /// Destination: PATH, ID:PATH, or -
    #[arg(value_name = "DST")]
    target: OsString,
    #[command(flatten)]
    guard: GuardArgs,
}

/// A signal ends the copying first, so that no unfinished file is left; a second one does not wait for that.
pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let mut copying = pin!(copy(args, client, &stop));
    let signal = tokio::select! {
        done = &mut copying => return done,
        signal = signals.next() => signal,
    };
    stop.cancel();
    tokio::select! {
        _ = &mut copying => {}
        _ = signals.next() => {}
    }
    sandkeep_sys::signal::end_by(signal.number())
}

async fn copy(args: Args, client: &Client, stop: &CancellationToken) -> Result<Exit, Failure> {
    match (End::read(args.source)?, End::read(args.target)?) {
        (End::Remote(source), End::Remote(_)) => {
            let problem = format!("both are in sandboxes; copy {source} to this machine first");
            Err(Failure::Usage { problem })
        }
        (End::Remote(source), local) => down::copy(client, &source, &local, args.guard, stop).await,
        // What has arrived incompletely is dropped inside.
        (local, End::Remote(target)) => tokio::select! {
            done = up::copy(client, &local, &target) => done,
            () = stop.cancelled() => Err(Failure::Interrupted),
        },
        (End::Local(_) | End::Standard, End::Local(_) | End::Standard) => {
            let problem = "neither is in a sandbox; write one as ID:PATH".to_owned();
            Err(Failure::Usage { problem })
        }
    }
}

impl Remote {
    /// The sandbox's files URL, and this path as a query.
    async fn resolve(&self, client: &Client) -> Result<(String, String), Failure> {
        let id = client.resolve(&self.sandbox).await?;
        Ok((format!("/api/v1/sandboxes/{id}/files"), format!("path={}", self.encoded())))
    }
}

/// An error about a file on this machine.
fn about(path: &std::path::Path, error: &std::io::Error) -> Failure {
    toolbox::Failure::from_io(error, Some(path)).into()
}
