//! `sandkeep apply`: applies the changes of a sandbox to a local directory.
//!
//! The daemon is asked once, for one moment of the sandbox: what changed, and the new files. Nothing that it sends is
//! trusted. Files are written below the directory and nowhere else, no link is followed, no device is created,
//! ownership and set-id bits are not taken over, and every file must match the list of changes.

mod error;
mod interactive;
mod look;
mod select;
mod staging;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bytes::{Buf as _, Bytes};
use futures_util::{Stream, StreamExt as _};
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use self::error::ApplyError;
use self::interactive::Asked;
use self::look::{Looked, look};
use self::select::{SelectArgs, Selection};
use self::staging::{Interrupted, Staging};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;
use crate::cli::tool_config::{Arrival, Guard, GuardArgs};
use sandkeep_client::Client;
use sandkeep_core::api::{DiffSandbox, FilePath};
use sandkeep_core::{SandboxId, limits};
use sandkeep_tree::{
    TreePath, View,
    apply::{
        self, Act, ApplyPlan, Conflict, Here, OnConflict, PLAN, Plan, PlanRequest, Scope, Step,
    },
    archive::{ArchiveError, Closing, Entries, Kind},
    diff::{FileChange, MANIFEST},
    digest::Hasher,
};

/// Apply the changes of a sandbox to a local directory
///
/// Applies what changed under --path since --from, except what the directory's .gitignore files ignore. A file that
/// changed on both sides is a conflict: it stays as it is in the directory, and the exit code is 8. Choose a side with
/// --ours or --theirs; with --all-or-nothing a conflict keeps everything else from being applied, too. Files that make
/// tools on this machine run commands (.git/config, hooks, .envrc, .vscode) are refused, unless --allow-tool-config is
/// given.
#[derive(Debug, clap::Args)]
pub struct ApplyArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    #[command(flatten)]
    home: HomeArgs,
    /// Snapshot that the directory corresponds to [default: base, the files that the sandbox started with]
    #[arg(long, value_name = "SNAPSHOT")]
    from: Option<String>,
    /// Directory in the sandbox that corresponds to it [default: the workspace, or the working directory]
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
}

/// Where changes come home, and which of them.
#[derive(Clone, Debug, clap::Args)]
pub struct HomeArgs {
    /// Local directory to change
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Show each hunk and each other change, and ask for it: y applies it, n leaves it, q leaves it and the rest
    #[arg(long, short = 'i', conflicts_with = "dry_run")]
    interactive: bool,
    /// Change nothing if there is a conflict
    #[arg(long)]
    all_or_nothing: bool,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    guard: GuardArgs,
}

impl HomeArgs {
    /// All changes to this directory, unless files there ignore them.
    pub fn everything(to: PathBuf) -> Self {
        let (select, guard) = (SelectArgs::default(), GuardArgs::default());
        Self { to, dry_run: false, interactive: false, all_or_nothing: false, select, guard }
    }

    /// The same, but nothing is changed.
    pub fn dry(self) -> Self {
        Self { dry_run: true, ..self }
    }

    /// The directory, and the rules for what arrives there.
    fn open(self) -> Result<(OwnedFd, Rules), Failure> {
        let Self { to, select, guard, interactive, .. } = self;
        let directory = open(&to).map_err(|error| Failure::Usage {
            problem: format!("--to {}: {error}", to.display()),
        })?;
        let asks = if interactive { Asks::Each } else { Asks::Nothing };
        Ok((directory, Rules { selection: select.beneath(&to)?, guard: guard.beneath(&to), asks }))
    }

    fn intent(&self) -> Intent {
        match (self.dry_run, self.all_or_nothing) {
            (true, _) => Intent::DryRun,
            (false, true) => Intent::ApplyAll,
            (false, false) => Intent::Apply,
        }
    }
}

/// The first file of a bundle, as far as it is needed here.
#[derive(Debug, Deserialize)]
struct Manifest {
    changes: Vec<FileChange>,
    truncated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    Apply,
    /// Only if nothing is in conflict.
    ApplyAll,
    DryRun,
}

/// What of the changes is wanted, and what is refused.
struct Rules {
    selection: Selection,
    guard: Guard,
    asks: Asks,
}

/// Whether the caller is asked for each change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Nothing,
    Each,
}

#[derive(Debug)]
struct Report {
    plan: Plan,
    /// How many changes the sandbox has.
    changes: usize,
    /// How many of them ignore files name.
    ignored: usize,
    found: Interrupted,
}

/// A directory that was looked at, before anything is known about its steps.
struct Begun {
    view: View,
    /// None if nothing is to be changed.
    staging: Option<Staging>,
    found: Interrupted,
    looked: Looked,
    changes: usize,
}

pub async fn run(args: ApplyArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let workdir = client.sandbox(&id).await?.workdir;
    let within = match args.path {
        Some(path) if path.starts_with('/') => path,
        Some(path) => format!("{workdir}/{path}"),
        None => workdir,
    };
    let top = TreePath::clean(within.as_bytes())
        .map_err(|problem| Failure::Usage { problem: format!("--path: {problem}") })?;
    let from = args.from.as_deref().unwrap_or("base").to_owned();
    let report = of_sandbox(client, &id, &within, &top, &from, args.home.clone()).await?;
    if report.changes == 0 {
        must_exist(client, &id, &within).await?;
    }
    print::note(&format!("compared with {from}, below {within}"));
    tell(&report, args.home.intent())
}

/// Tells the daemon how the directory looks where the sandbox has changes, and carries out its plan.
async fn of_sandbox(
    client: &Client,
    id: &SandboxId,
    within: &str,
    top: &TreePath,
    from: &str,
    home: HomeArgs,
) -> Result<Report, Failure> {
    let intent = home.intent();
    let (directory, rules) = home.open()?;
    let asked = DiffSandbox {
        from: Some(from.to_owned()),
        path: Some(within.to_owned()),
        limit: Some(limits::DIFF_CHANGES_MAX),
        ..DiffSandbox::default()
    };
    let manifest = serde_json::from_value(client.diff(id, &asked).await?)
        .map_err(|_| failed(ApplyError::Manifest("its list cannot be read")))?;
    let (begun, rules) = blocking({
        let top = top.clone();
        move || Ok((begin(directory, &manifest, &top, intent, &rules)?, rules))
    })
    .await?;
    let request = PlanRequest {
        path: Some(within.to_owned()),
        from: Some(from.to_owned()),
        files: begun.looked.files.clone(),
        scope: Scope::Listed,
        on_conflict: OnConflict::Report,
    };
    let plan = client.apply_plan(id, &request).await;
    let response = match plan {
        Ok(response) => response,
        Err(error) => {
            begun.give_up();
            return Err(error.into());
        }
    };
    receive(response.bytes_stream().map(into_io), move |bundle| {
        let mut entries = Entries::new(bundle);
        let plan = match read_plan(&mut entries) {
            Ok(plan) => plan,
            Err(error) => {
                begun.give_up();
                return Err(error);
            }
        };
        carry_out(begun, plan, entries, intent, &rules)
    })
    .await
}

fn into_io(piece: reqwest::Result<Bytes>) -> io::Result<Bytes> {
    piece.map_err(io::Error::other)
}

/// Brings the changes of a codebase home, from a bundle whose paths begin at its root. Returns how many it has, too.
pub async fn of_codebase(
    bundle: impl Stream<Item = io::Result<Bytes>>,
    home: HomeArgs,
) -> Result<(Exit, usize), Failure> {
    let intent = home.intent();
    let report = come_home(bundle, home, &TreePath::default()).await?;
    Ok((tell(&report, intent)?, report.changes))
}

/// The same over HTTP.
pub async fn of_response(
    response: reqwest::Response,
    home: HomeArgs,
) -> Result<(Exit, usize), Failure> {
    of_codebase(response.bytes_stream().map(into_io), home).await
}

async fn come_home(
    bundle: impl Stream<Item = io::Result<Bytes>>,
    home: HomeArgs,
    top: &TreePath,
) -> Result<Report, Failure> {
    let intent = home.intent();
    let (directory, rules) = home.open()?;
    let top = top.clone();
    receive(bundle, move |pieces| bring(pieces, directory, &top, intent, &rules)).await
}

/// Reads a stream on a thread of its own.
async fn receive<T: Send + 'static>(
    stream: impl Stream<Item = io::Result<Bytes>>,
    work: impl FnOnce(Pieces) -> Result<T, ApplyError> + Send + 'static,
) -> Result<T, Failure> {
    let (sender, receiver) = mpsc::channel(limits::APPLY_CHUNKS_QUEUED);
    let work = blocking(move || work(Pieces { receiver, current: Bytes::new() }));
    let send = async move {
        let mut stream = std::pin::pin!(stream);
        while let Some(piece) = stream.next().await {
            // The reader may have stopped.
            if sender.send(piece).await.is_err() {
                break;
            }
        }
    };
    futures_util::join!(work, send).0
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApplyError> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::Tool(Box::new(error)))?.map_err(failed)
}

fn failed(error: ApplyError) -> Failure {
    Failure::Tool(Box::new(error))
}

/// Without changes a directory that is misspelt would look like one in which nothing has changed.
async fn must_exist(client: &Client, id: &SandboxId, path: &str) -> Result<(), Failure> {
    let file = FilePath { path: path.to_owned() };
    match client.stat_file(id, &file).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some("file_not_found") => Err(error.into()),
        // A sandbox that does not run cannot be asked.
        Err(_) => Ok(()),
    }
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Reads a bundle and applies it to the directory.
fn bring(
    bundle: impl Read,
    directory: OwnedFd,
    top: &TreePath,
    intent: Intent,
    rules: &Rules,
) -> Result<Report, ApplyError> {
    let mut entries = Entries::new(bundle);
    let manifest: Manifest = read_list(&mut entries, MANIFEST)?;
    let begun = begin(directory, &manifest, top, intent, rules)?;
    let here = Here::new(begun.looked.files.clone(), Scope::Listed, OnConflict::Report);
    let plan = match here.and_then(|here| apply::plan(&here, &manifest.changes, top)) {
        Ok(plan) => plan,
        Err(problem) => {
            begun.give_up();
            return Err(problem.into());
        }
    };
    carry_out(begun, plan, entries, intent, rules)
}

/// Looks at the directory where there are changes. If it is to be changed, nobody else applies to it from now on.
fn begin(
    directory: OwnedFd,
    manifest: &Manifest,
    top: &TreePath,
    intent: Intent,
    rules: &Rules,
) -> Result<Begun, ApplyError> {
    if manifest.truncated {
        return Err(ApplyError::Truncated);
    }
    let view = View::of_trees(vec![directory.try_clone()?]);
    let (staging, found) = match intent {
        Intent::DryRun => (None, Interrupted::Nothing),
        Intent::Apply | Intent::ApplyAll => {
            let (staging, found) = Staging::begin(directory)?;
            (Some(staging), found)
        }
    };
    let changes = manifest.changes.len();
    match look(&view, &manifest.changes, top, &rules.selection) {
        Ok(looked) => Ok(Begun { view, staging, found, looked, changes }),
        Err(error) => {
            if let Some(staging) = staging {
                staging.clear();
            }
            Err(error)
        }
    }
}

impl Begun {
    fn give_up(self) {
        if let Some(staging) = self.staging {
            staging.clear();
        }
    }
}

fn carry_out<R: Read>(
    begun: Begun,
    mut plan: Plan,
    mut entries: Entries<R>,
    intent: Intent,
    rules: &Rules,
) -> Result<Report, ApplyError> {
    let Begun { view, staging, found, looked, changes } = begun;
    let allowed = looked.check(&plan).and_then(|()| guard(&plan, rules));
    let ignored = looked.ignored;
    let Some(staging) = staging else {
        allowed?;
        return Ok(Report { plan, changes, ignored, found });
    };
    let refused = intent == Intent::ApplyAll && !plan.conflicts.is_empty();
    if allowed.is_ok() && (refused || plan.steps.is_empty()) {
        staging.clear();
        return Ok(Report { plan, changes, ignored, found });
    }
    let chosen = allowed.and_then(|()| stage(&staging, &plan.steps, &mut entries)).and_then(|()| {
        // Read to its end, so that a truncated bundle is detected.
        match entries.finish()? {
            Closing::Marked => {}
            Closing::Unmarked => return Err(ArchiveError::Truncated.into()),
        }
        match rules.asks {
            Asks::Nothing => Ok(()),
            Asks::Each => {
                let mut asked = Asked::new(io::stdin().lock(), io::stderr());
                interactive::choose(&view, &staging, &mut plan, &mut asked)
            }
        }
    });
    if let Err(error) = chosen {
        staging.clear();
        return Err(error);
    }
    staging.commit(&plan.steps)?;
    Ok(Report { plan, changes, ignored, found })
}

/// Refuses files that would make the caller's tools run commands.
fn guard(plan: &Plan, rules: &Rules) -> Result<(), ApplyError> {
    rules.guard.check(plan.steps.iter().map(|Step { path, act }| {
        let arrival = match act {
            Act::MakeDirectory { .. } | Act::RemoveDirectory => Arrival::Directory,
            Act::Link { .. } => Arrival::Link,
            Act::Write { .. } | Act::Remove | Act::Mode { .. } => Arrival::File,
        };
        (path.bytes(), arrival)
    }))?;
    Ok(())
}

fn read_plan(entries: &mut Entries<impl Read>) -> Result<Plan, ApplyError> {
    Ok(read_list::<ApplyPlan>(entries, PLAN)?.plan()?)
}

/// The first file of a bundle.
fn read_list<T: DeserializeOwned>(
    entries: &mut Entries<impl Read>,
    name: &str,
) -> Result<T, ApplyError> {
    let first = entries.next()?.ok_or(ApplyError::Manifest("it is empty"))?;
    if first.path != name.as_bytes() || entries.data_left() > limits::APPLY_MANIFEST_MAX_BYTES {
        return Err(ApplyError::Manifest("it does not begin with a list of changes"));
    }
    let mut bytes = Vec::new();
    let mut buffer = vec![0; limits::STDIN_CHUNK_BYTES];
    loop {
        match entries.read_data(&mut buffer)? {
            0 => break,
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
    serde_json::from_slice(&bytes).map_err(|_| ApplyError::Manifest("its list cannot be read"))
}

/// Writes all new files beside the directory's own.
fn stage<R: Read>(
    staging: &Staging,
    steps: &[Step],
    entries: &mut Entries<R>,
) -> Result<(), ApplyError> {
    let mut awaited: HashMap<&TreePath, (usize, &Act)> = HashMap::new();
    for (number, step) in steps.iter().enumerate() {
        match &step.act {
            Act::Write { source, .. } => drop(awaited.insert(source, (number, &step.act))),
            Act::Link { target } => staging.link(number, target)?,
            Act::Remove | Act::RemoveDirectory | Act::MakeDirectory { .. } | Act::Mode { .. } => {}
        }
    }
    while let Some(entry) = entries.next()? {
        let path = TreePath::clean(&entry.path)?;
        let Some((number, Act::Write { mode, digest, .. })) = awaited.remove(&path) else {
            continue;
        };
        let mismatch = || ApplyError::Mismatch { path: path.shown() };
        let Kind::File { segments: None, .. } = entry.kind else { return Err(mismatch()) };
        let mut file = staging.file(number, *mode)?;
        let mut hasher = Hasher::new();
        let mut buffer = vec![0; limits::STDIN_CHUNK_BYTES];
        loop {
            match entries.read_data(&mut buffer)? {
                0 => break,
                read => {
                    hasher.update(&buffer[..read]);
                    file.write_all(&buffer[..read])?;
                }
            }
        }
        if hasher.finish() != *digest {
            return Err(mismatch());
        }
    }
    match awaited.keys().next() {
        Some(path) => Err(ApplyError::Mismatch { path: path.shown() }),
        None => Ok(()),
    }
}

fn tell(report: &Report, intent: Intent) -> Result<Exit, Failure> {
    if report.found == Interrupted::CutOff {
        print::note("an earlier apply to this directory was interrupted; its changes were undone");
    }
    for Conflict { path, why } in &report.plan.conflicts {
        print::line(&format!("conflict  {}: {why}", path.shown()))?;
    }
    let conflicts = report.plan.conflicts.len();
    if conflicts > 0 && intent == Intent::ApplyAll {
        print::note(
            "nothing was changed: choose a side with --ours or --theirs, or leave out files with --exclude",
        );
        return Ok(Exit::Conflicts);
    }
    for Step { path, act } in &report.plan.steps {
        let what = match act {
            Act::Remove | Act::RemoveDirectory => "remove",
            Act::MakeDirectory { .. } => "make",
            Act::Write { .. } => "write",
            Act::Link { .. } => "link",
            Act::Mode { .. } => "mode",
        };
        print::line(&format!("{what:<8}  {}", path.shown()))?;
    }
    for path in &report.plan.kept {
        print::note(&format!(
            "{} was kept: it has files that the sandbox did not have",
            path.shown()
        ));
    }
    if report.ignored > 0 {
        let ignored = report.ignored;
        print::note(&format!(
            "{ignored} changes were left out by .gitignore; --no-ignore applies them"
        ));
    }
    if intent == Intent::DryRun {
        print::note("nothing was changed: this was a dry run");
    }
    if conflicts > 0 {
        print::note(&format!(
            "{conflicts} conflicts stay as they are here; choose a side with --ours or --theirs"
        ));
        return Ok(Exit::Conflicts);
    }
    Ok(Exit::Ok)
}

/// A stream from another task, read on this thread.
struct Pieces {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.current = piece?,
            }
        }
        let room = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..room]);
        Ok(room)
    }
}
