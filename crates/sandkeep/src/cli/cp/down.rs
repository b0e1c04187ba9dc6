//! Copies out of a sandbox. The data is not trusted: an archive is unpacked below one directory, without following
//! links, and its files belong to the caller.

use std::fs;
use std::io::{self, Read, Seek as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use indicatif::ProgressBar;
use reqwest::Response;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbox::{
    ArchiveEntry, DATA_MAX, EntryKind, Ownership, Replacement, archive_entries, unpack_into,
};

use super::about;
use super::place::{End, Remote, means_content, means_directory};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::progress::bar;
use crate::cli::tool_config::{Arrival, Guard, GuardArgs};
use sandkeep_client::Client;
use sandkeep_core::limits::CP_PIECES_MAX;

pub async fn copy(
    client: &Client,
    source: &Remote,
    target: &End,
    guard: GuardArgs,
    stop: &CancellationToken,
) -> Result<Exit, Failure> {
    let (files, query) = source.resolve(client).await?;
    let bar = bar();
    bar.set_message("receiving");
    let is_directory = is_directory(client, &files, source).await?;
    match target {
        End::Standard => {
            let what = if is_directory { "/archive" } else { "" };
            let answer = client.get_bytes(&format!("{files}{what}"), &query).await?;
            to_stdout(Answer { client, answer, stop }).await?;
        }
        End::Local(target) if is_directory => {
            let answer = client.get_bytes(&format!("{files}/archive"), &query).await?;
            bar.set_length(header(&answer, "x-sandkeep-archive-bytes").unwrap_or(0));
            let directory = directory_for(source, target)?;
            let answer = Answer { client, answer, stop };
            let unpacked = tree(answer, &directory.path, &bar, guard).await;
            match (&unpacked, directory.made) {
                (Err(Failure::ToolConfig(_)), Made::Now) => {
                    let _ = fs::remove_dir(&directory.path);
                }
                // All of it came from this copy.
                (Err(Failure::Interrupted), Made::Now) => {
                    let _ = fs::remove_dir_all(&directory.path);
                }
                _ => {}
            }
            unpacked?;
        }
        End::Local(target) => {
            let path = file_for(source, target)?;
            check_file(&path, guard)?;
            let mode = mode_of(client, &files, &query).await?;
            let answer = client.get_bytes(&files, &query).await?;
            bar.set_length(header(&answer, "content-length").unwrap_or(0));
            file(Answer { client, answer, stop }, &path, mode, &bar).await?;
        }
        End::Remote(_) => {}
    }
    bar.finish_and_clear();
    Ok(Exit::Ok)
}

/// The metadata of a file that copying needs.
#[derive(serde::Deserialize)]
struct Entry {
    kind: String,
    /// Octal.
    mode: String,
}

/// A link's target counts, so the query's trailing part resolves it.
async fn is_directory(client: &Client, files: &str, source: &Remote) -> Result<bool, Failure> {
    let behind = source.join(std::ffi::OsStr::new("."));
    let query = format!("path={}", behind.encoded());
    match client.get_raw(&format!("{files}/stat"), &query).await {
        Ok(Entry { kind, .. }) => Ok(kind == "directory"),
        Err(error) if error.code() == Some("not_a_directory") => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn mode_of(client: &Client, files: &str, query: &str) -> Result<Option<u32>, Failure> {
    let entry: Entry = client.get_raw(&format!("{files}/stat"), query).await?;
    // A link's own mode says nothing about the file.
    if entry.kind != "file" {
        return Ok(None);
    }
    Ok(u32::from_str_radix(&entry.mode, 8).ok())
}

fn header(answer: &Response, name: &str) -> Option<u64> {
    answer.headers().get(name)?.to_str().ok()?.parse().ok()
}

/// As with `cp` and `docker cp`: into an existing directory, otherwise under the given name.
fn file_for(source: &Remote, target: &Path) -> Result<PathBuf, Failure> {
    match (target.is_dir(), source.as_path().file_name()) {
        (true, Some(name)) => Ok(target.join(name)),
        (false, _) if means_directory(target) => {
            Err(about(target, &io::ErrorKind::NotADirectory.into()))
        }
        (false, _) | (true, None) => Ok(target.to_owned()),
    }
}

/// A link is not followed: it may also have come from a sandbox.
fn check_file(path: &Path, guard: GuardArgs) -> Result<(), Failure> {
    if path.is_symlink() {
        let problem = format!("{} is a symbolic link; name the file it leads to", path.display());
        return Err(Failure::Usage { problem });
    }
    let Some(name) = path.file_name() else { return Ok(()) };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    Ok(guard.beneath(parent).check(std::iter::once((name.as_bytes(), Arrival::File)))?)
}

struct Directory {
    path: PathBuf,
    made: Made,
}

enum Made {
    Now,
    Before,
}

/// The same for a directory, which is created.
fn directory_for(source: &Remote, target: &Path) -> Result<Directory, Failure> {
    let directory = match (target.is_dir(), source.as_path().file_name()) {
        (true, Some(name)) if !means_content(source.as_path()) => target.join(name),
        (true, _) | (false, _) => target.to_owned(),
    };
    match fs::create_dir(&directory) {
        Ok(()) => Ok(Directory { path: directory, made: Made::Now }),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {
            Ok(Directory { path: directory, made: Made::Before })
        }
        Err(error) => Err(about(&directory, &error)),
    }
}

/// An answer that is read until somebody asks to stop.
pub struct Answer<'a> {
    pub client: &'a Client,
    pub answer: Response,
    pub stop: &'a CancellationToken,
}

impl Answer<'_> {
    async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Failure::Interrupted),
            chunk = self.answer.chunk() => Ok(chunk.map_err(|error| self.client.broke_off(error))?),
        }
    }
}

pub async fn to_stdout(mut answer: Answer<'_>) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    while let Some(bytes) = answer.chunk().await? {
        stdout.write_all(&bytes).map_err(Failure::system("write to stdout"))?;
    }
    stdout.flush().map_err(Failure::system("write to stdout"))
}

async fn file(
    mut answer: Answer<'_>,
    target: &Path,
    mode: Option<u32>,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let mut replacement = Replacement::of(target)?;
    while let Some(bytes) = answer.chunk().await? {
        replacement.write(&bytes)?;
        bar.inc(bytes.len() as u64);
    }
    // No set-id bits, so that running a file from a sandbox gives nobody another identity.
    replacement.finish(mode.map(|mode| mode & 0o777))?;
    Ok(())
}

/// Unpacks on a thread that may block, as fast as data arrives.
async fn tree(
    mut answer: Answer<'_>,
    directory: &Path,
    bar: &ProgressBar,
    guard: GuardArgs,
) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel(CP_PIECES_MAX);
    let (root, guard) = (directory.to_owned(), guard.beneath(directory));
    let unpacking = tokio::task::spawn_blocking(move || {
        unpack(&root, &guard, &mut Pieces { receiver, held: Bytes::new() })
    });
    let broken = loop {
        match answer.chunk().await {
            Ok(Some(bytes)) => {
                bar.inc(bytes.len() as u64);
                // The reason why the receiver stopped is reported below.
                if sender.send(Ok(bytes)).await.is_err() {
                    break None;
                }
            }
            Ok(None) => break None,
            Err(failure) => {
                let _ = sender.send(Err(io::ErrorKind::UnexpectedEof.into())).await;
                break Some(failure);
            }
        }
    };
    drop(sender);
    let unpacked =
        unpacking.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    match (broken, unpacked) {
        (Some(failure), _) => Err(failure),
        (None, unpacked) => unpacked,
    }
}

/// The whole archive is checked before any of it is written, so until then it is kept in an unnamed file beside the
/// others.
fn unpack(root: &Path, guard: &Guard, from: &mut Pieces) -> Result<(), Failure> {
    if let Guard::Allow = guard {
        unpack_into(root, Ownership::Own, from)?;
        return Ok(());
    }
    let kept = Failure::system("keep the archive in the directory");
    let mut archive = tempfile::tempfile_in(root).map_err(kept)?;
    io::copy(from, &mut archive).map_err(Failure::system("receive the archive"))?;
    archive.rewind().map_err(Failure::system("read the archive"))?;
    let entries = archive_entries(&archive)?;
    guard.check(entries.iter().map(|ArchiveEntry { path, kind }| {
        let arrival = match kind {
            EntryKind::Directory => Arrival::Directory,
            EntryKind::Symlink => Arrival::Link,
            _ => Arrival::File,
        };
        (path.as_os_str().as_bytes(), arrival)
    }))?;
    archive.rewind().map_err(Failure::system("read the archive"))?;
    unpack_into(root, Ownership::Own, &mut io::BufReader::with_capacity(DATA_MAX, archive))?;
    Ok(())
}

/// A stream of pieces, read as a file.
struct Pieces {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    held: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.held.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.held = piece?,
                None => return Ok(0),
            }
        }
        let count = self.held.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.held.split_to(count));
        Ok(count)
    }
}
