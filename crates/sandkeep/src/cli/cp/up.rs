//! Copies into a sandbox.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::stream;
use indicatif::ProgressBar;
use reqwest::Body;
use tokio::sync::mpsc;
use toolbox::{pack_to, survey};

use super::about;
use super::place::{End, Remote, means_content, means_directory};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::progress::{bar, pieces};
use sandkeep_client::{Client, Error as Api};
use sandkeep_core::limits::CP_PIECES_MAX;

pub async fn copy(client: &Client, source: &End, target: &Remote) -> Result<Exit, Failure> {
    let (files, _) = target.resolve(client).await?;
    let bar = bar();
    bar.set_message("sending");
    match source {
        End::Standard => {
            let query = format!("path={}", target.encoded());
            client.put_bytes(&files, &query, pieces(tokio::io::stdin(), &bar)).await?;
        }
        End::Local(path) => {
            let found = std::fs::metadata(path).map_err(|error| about(path, &error))?;
            if found.is_dir() {
                tree(client, &files, path, target, &bar).await?
            } else {
                file(client, &files, path, &found, target, &bar).await?
            }
        }
        End::Remote(_) => {}
    }
    bar.finish_and_clear();
    Ok(Exit::Ok)
}

async fn file(
    client: &Client,
    files: &str,
    path: &Path,
    found: &std::fs::Metadata,
    target: &Remote,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let name = name_of(path)?;
    let within;
    let target = match is_directory(client, files, target).await? {
        TargetKind::Directory => {
            within = target.join(&name);
            &within
        }
        TargetKind::Other | TargetKind::Nothing if means_directory(target.as_path()) => {
            let problem = format!("{target} is no directory; make it first");
            return Err(Failure::Usage { problem });
        }
        TargetKind::Other | TargetKind::Nothing => target,
    };
    let file = tokio::fs::File::open(path).await.map_err(|error| about(path, &error))?;
    bar.set_length(found.len());
    let query = format!("path={}&mode={:04o}", target.encoded(), found.mode() & 0o777);
    Ok(client.put_bytes(files, &query, pieces(file, bar)).await.map(drop)?)
}

async fn tree(
    client: &Client,
    files: &str,
    path: &Path,
    target: &Remote,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let within;
    let target = match is_directory(client, files, target).await? {
        TargetKind::Directory if !means_content(path) => {
            within = target.join(&name_of(path)?);
            &within
        }
        TargetKind::Directory | TargetKind::Nothing => target,
        TargetKind::Other => {
            let problem = format!("{target} is a file, and {} a directory", path.display());
            return Err(Failure::Usage { problem });
        }
    };
    bar.set_length(survey(path)?.bytes);
    let (sender, receiver) = mpsc::channel(CP_PIECES_MAX);
    let (root, shown) = (path.to_owned(), bar.clone());
    let packing = tokio::task::spawn_blocking(move || {
        let packed = pack_to(&root, &mut Pieces { sender: sender.clone(), bar: shown });
        if packed.is_err() {
            // So that the receiver does not mistake it for complete.
            let _ = sender.blocking_send(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        packed
    });
    let body = stream::unfold(receiver, |mut receiver| async move {
        let piece: io::Result<Bytes> = receiver.recv().await?;
        Some((piece, receiver))
    });
    let query = format!("path={}&parents=true", target.encoded());
    let sent = client.put_bytes(&format!("{files}/archive"), &query, Body::wrap_stream(body)).await;
    let packed =
        packing.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    match (sent, packed) {
        (Err(error @ Api::Refused(_)), _) => Err(error.into()),
        (_, Err(failure)) if failure.kind != toolbox::FailureKind::Other => Err(failure.into()),
        (sent, _) => Ok(sent.map(drop)?),
    }
}

/// What the target is at present.
enum TargetKind {
    Directory,
    Other,
    Nothing,
}

async fn is_directory(
    client: &Client,
    files: &str,
    target: &Remote,
) -> Result<TargetKind, Failure> {
    let query = format!("path={}", target.join(OsStr::new(".")).encoded());
    match client.get_raw::<serde_json::Value>(&format!("{files}/stat"), &query).await {
        Ok(_) => Ok(TargetKind::Directory),
        Err(error) if error.code() == Some("not_a_directory") => Ok(TargetKind::Other),
        Err(error) if error.code() == Some("file_not_found") => Ok(TargetKind::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Its name, resolving `..` if necessary.
fn name_of(path: &Path) -> Result<OsString, Failure> {
    if let Some(name) = path.file_name() {
        return Ok(name.to_owned());
    }
    let whole: PathBuf = std::fs::canonicalize(path).map_err(|error| about(path, &error))?;
    Ok(whole.file_name().unwrap_or(OsStr::new("root")).to_owned())
}

/// An archive that is sent in pieces.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    bar: ProgressBar,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.sender.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.bar.inc(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
