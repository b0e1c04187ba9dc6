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

use place::{End, Remote, Whose};
use sandkeep_core::CodebaseRef;

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

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let Args { source, target, guard } = args;
    unless_interrupted((source, target, Whose::Sandbox), guard, client).await
}

/// The same with a codebase.
pub async fn with_codebase(
    source: OsString,
    target: OsString,
    guard: GuardArgs,
    client: &Client,
) -> Result<Exit, Failure> {
    unless_interrupted((source, target, Whose::Codebase), guard, client).await
}

/// A signal ends the copying first, so that no unfinished file is left; a second one does not wait for that.
async fn unless_interrupted(
    ends: (OsString, OsString, Whose),
    guard: GuardArgs,
    client: &Client,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let mut copying = pin!(copy(ends, guard, client, &stop));
    let signal = tokio::select! {
        done = &mut copying => return done,
        signal = signals.next() => signal,
    };
    stop.cancel();
    tokio::select! {
        done = &mut copying => if done.is_ok() {
            // The signal came when everything was there.
            return done;
        },
        _ = signals.next() => {}
    }
    sandkeep_sys::signal::end_by(signal.number())
}

async fn copy(
    (source, target, of): (OsString, OsString, Whose),
    guard: GuardArgs,
    client: &Client,
    stop: &CancellationToken,
) -> Result<Exit, Failure> {
    let (place, places, example) = match of {
        Whose::Sandbox => ("sandbox", "sandboxes", "ID:PATH"),
        Whose::Codebase => ("codebase", "codebases", "NAME:PATH"),
    };
    match (End::read(source, of)?, End::read(target, of)?) {
        (End::Remote(source), End::Remote(_)) => {
            let problem = format!("both are in {places}; copy {source} to this machine first");
            Err(Failure::Usage { problem })
        }
        (End::Remote(source), local) => down::copy(client, &source, &local, guard, stop).await,
        // The guest drops an incomplete file.
        (local, End::Remote(target)) => tokio::select! {
            done = up::copy(client, &local, &target) => done,
            () = stop.cancelled() => Err(Failure::Interrupted),
        },
        (End::Local(_) | End::Standard, End::Local(_) | End::Standard) => {
            let problem = format!("neither is in a {place}; write one as {example}");
            Err(Failure::Usage { problem })
        }
    }
}

/// What is done with an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archiving {
    ToStdout,
    FromStdin,
}

/// Writes a directory of a codebase to stdout as a tar, or unpacks one from stdin there.
pub async fn archive(
    codebase: &CodebaseRef,
    path: OsString,
    what: Archiving,
    client: &Client,
) -> Result<Exit, Failure> {
    let path = std::os::unix::ffi::OsStringExt::into_vec(path);
    let remote = Remote { of: Whose::Codebase, sandbox: codebase.to_string(), path };
    let (files, query) = remote.resolve(client).await?;
    let archive = format!("{files}/archive");
    match what {
        Archiving::ToStdout => {
            let answer = client.get_bytes(&archive, &query).await?;
            down::to_stdout(down::Answer { client, answer, stop: &CancellationToken::new() })
                .await?;
        }
        Archiving::FromStdin => {
            let body =
                crate::cli::progress::pieces(tokio::io::stdin(), &crate::cli::progress::bar());
            client.put_bytes(&archive, &format!("{query}&parents=true"), body).await?;
        }
    }
    Ok(Exit::Ok)
}

impl Remote {
    /// The URL of the files, and this path as a query.
    async fn resolve(&self, client: &Client) -> Result<(String, String), Failure> {
        let files = match self.of {
            Whose::Sandbox => {
                let id = client.resolve(&self.sandbox).await?;
                format!("/api/v1/sandboxes/{id}/files")
            }
            Whose::Codebase => {
                let codebase = self.sandbox.parse::<CodebaseRef>();
                let codebase =
                    codebase.map_err(|error| Failure::Usage { problem: error.to_string() })?;
                client.codebase_files(&codebase)
            }
        };
        Ok((files, format!("path={}", self.encoded())))
    }
}

/// An error about a file on this machine.
fn about(path: &std::path::Path, error: &std::io::Error) -> Failure {
    toolbox::Failure::from_io(error, Some(path)).into()
}
