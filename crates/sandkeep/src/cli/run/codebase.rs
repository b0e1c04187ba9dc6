//! `sandkeep run --codebase DIR` without a daemon: the command works on a copy of the directory, as its rules allow, and
//! afterwards the changes come home or are dropped.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};

use super::ask::Terminal;
use super::in_sandbox;
use super::signals::Signals;
use crate::cli::apply::{HomeArgs, of_codebase};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;
use sandkeep_broker::{Broker, ExecDraft};
use sandkeep_core::api::CreateCodebase;
use sandkeep_core::{CodebaseRef, HostPaths, Principal, SourceDraft, SpecDraft};

/// What becomes of the changes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AfterwardsArgs {
    /// With --codebase: apply the changes to the directory when the command ends, without asking
    #[arg(long, conflicts_with = "discard")]
    apply: bool,
    /// With --codebase: drop the changes when the command ends, without asking
    #[arg(long)]
    discard: bool,
}

impl AfterwardsArgs {
    /// The option that was given without a codebase.
    pub fn given(&self) -> Option<&'static str> {
        match (self.apply, self.discard) {
            (true, _) => Some("--apply"),
            (false, true) => Some("--discard"),
            (false, false) => None,
        }
    }
}

/// The directory that was named.
pub fn directory(name: &str) -> Result<PathBuf, Failure> {
    let wrong =
        |problem: String| Failure::Usage { problem: format!("--codebase {name}: {problem}") };
    let path = std::fs::canonicalize(name).map_err(|error| wrong(error.to_string()))?;
    if path.is_dir() { Ok(path) } else { Err(wrong("it is no directory".to_owned())) }
}

/// Runs the command on a copy of the directory.
pub async fn run(
    broker: &Broker,
    mut draft: SpecDraft,
    exec: ExecDraft,
    (dir, afterwards): (PathBuf, AfterwardsArgs),
    terminal: Option<Terminal>,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let who = Principal::local();
    let Some(dir_text) = dir.to_str().map(str::to_owned) else {
        let problem = format!("--codebase {}: its name is no text", dir.display());
        return Err(Failure::Usage { problem });
    };
    let source =
        SourceDraft { dir: Some(dir_text), reach: HostPaths::Any, ..SourceDraft::default() };
    let name = "codebase".parse().expect("it is a name");
    let create = CreateCodebase { name, project: None, source: Some(source), disk_mb: None };
    let codebase = CodebaseRef::from(&broker.create_codebase(&who, create).await?.id);
    draft.codebase = Some(codebase.clone());
    let result = in_sandbox(broker, draft, exec, terminal, signals).await;
    let home = match &result {
        Ok(_) => come_home(broker, &codebase, &dir, &afterwards).await,
        Err(_) => Ok(()),
    };
    broker.delete_codebase(&who, &codebase).await?;
    home?;
    result
}

async fn come_home(
    broker: &Broker,
    codebase: &CodebaseRef,
    dir: &Path,
    afterwards: &AfterwardsArgs,
) -> Result<(), Failure> {
    let home = HomeArgs::everything(dir.to_owned());
    if !afterwards.apply {
        let (_, changes) = of_codebase(bundle(broker, codebase).await?, home.clone().dry()).await?;
        if changes == 0 || afterwards.discard || !agreed(dir) {
            return Ok(());
        }
    }
    match of_codebase(bundle(broker, codebase).await?, home).await {
        Ok(_) => Ok(()),
        Err(failure) => {
            let saved = save(broker, codebase).await?;
            print::note(&format!("the changes are in {}", saved.display()));
            Err(failure)
        }
    }
}

async fn bundle(
    broker: &Broker,
    codebase: &CodebaseRef,
) -> Result<impl Stream<Item = std::io::Result<Bytes>>, Failure> {
    let bundle = broker.codebase_bundle(&Principal::local(), codebase).await?;
    Ok(stream::unfold(bundle, |mut bundle| async move {
        let piece = bundle.next().await?;
        Some((piece, bundle))
    }))
}

/// Asks at the terminal, whose input the command had. Without one nothing is applied.
fn agreed(dir: &Path) -> bool {
    let asked = || -> std::io::Result<bool> {
        let mut terminal = std::fs::File::options().read(true).write(true).open("/dev/tty")?;
        write!(terminal, "Apply these changes to {}? [y/N] ", dir.display())?;
        let mut answer = String::new();
        BufReader::new(terminal).read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    };
    asked().unwrap_or_else(|_| {
        print::note(
            "nothing was applied, and there is no terminal to ask at; give --apply or --discard",
        );
        false
    })
}

/// Keeps changes that could not be applied: a tar with a list of them.
async fn save(broker: &Broker, codebase: &CodebaseRef) -> Result<PathBuf, Failure> {
    let unwritable = || Failure::system("save the changes");
    let made = tempfile::Builder::new().prefix("sandkeep-changes-").suffix(".tar").tempfile();
    let mut file = made.map_err(unwritable())?;
    let mut pieces = std::pin::pin!(bundle(broker, codebase).await?);
    while let Some(piece) = pieces.next().await {
        file.write_all(&piece.map_err(unwritable())?).map_err(unwritable())?;
    }
    let (_, path) = file.keep().map_err(|error| unwritable()(error.error))?;
    Ok(path)
}
