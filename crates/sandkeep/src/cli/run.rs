//! `sandkeep run`: one command in a temporary sandbox, of a daemon (`remote`) or without one.
//!
//! The broker and the sandbox end with this process, however it ends. Stdin, stdout, stderr and the exit code pass
//! through as if the command had been started directly.

mod ask;
mod codebase;
pub(super) mod place;
mod remote;
pub(super) mod signals;
mod volume;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::assemble::{self, Wanted};
use crate::cli::exec_args::ExecArgs;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::publish::PublishArgs;
use crate::cli::source_args::SourceArgs;
use crate::cli::spec_args::SpecArgs;
use crate::cli::{print, stdin};
use crate::config::{self, ConfigFile, Flags, Settings, Surroundings};
use ask::Terminal;
use codebase::AfterwardsArgs;
use place::TempDataDir;
use sandkeep_broker::{Broker, ExecDraft, Running, error::Error};
use sandkeep_core::{HostPaths, Principal, SandboxId, SourceDraft, SpecDraft};
use sandkeep_guestlink::{ExecEnd, ExecEvent, ExecutionInput, OutputStream, journal::StdinSource};
use signals::Signals;
use volume::VolumeArgs;

/// Run one command in a throwaway sandbox
///
/// With --url (or SANDKEEP_URL) the sandbox is one of that daemon; without, no daemon is needed.
///
/// Stdin, stdout, stderr and the exit code pass through (128+n for signal n, 124 for a timeout, 137 for out
/// of memory, 125 if Sandkeep itself failed). The sandbox is destroyed when the command ends. The first Ctrl-C
/// goes to the command, the second destroys the sandbox.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    pub exec: ExecArgs,
    #[command(flatten)]
    kept: RemoteArgs,
    #[command(flatten)]
    volume: VolumeArgs,
    /// Ask in this terminal about every connection that is not allowed; stdin is not passed if it is the terminal
    #[arg(long)]
    ask: bool,
    #[command(flatten)]
    afterwards: AfterwardsArgs,
    /// Command and arguments, after `--`
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// What only a sandbox of a daemon can have.
#[derive(Clone, Debug, Default, clap::Args)]
struct RemoteArgs {
    /// Keep the sandbox when the command ends; needs a daemon
    #[arg(long)]
    keep: bool,
    /// Name of the sandbox; needs a daemon
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    publish: PublishArgs,
}

impl Args {
    /// The terminal to ask in, if that is wanted.
    fn terminal(&mut self) -> Result<Option<Terminal>, Failure> {
        if !self.ask {
            return Ok(None);
        }
        self.spec.network.ask()?;
        Terminal::open().map(Some)
    }

    /// Answers and input for the command would be read from one terminal.
    fn asks_on_stdin(&self) -> bool {
        self.ask && std::io::stdin().is_terminal()
    }
}

impl RemoteArgs {
    /// Refuses them where the sandbox ends with this process.
    fn must_be_absent(&self) -> Result<(), Failure> {
        let given = [
            ("--keep", self.keep),
            ("--name", self.name.is_some()),
            ("--port", !self.publish.is_empty()),
        ];
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) => {
                let problem = format!(
                    "{option} needs a daemon: start one with `sandkeep serve`, and give its address with --url or \
                     SANDKEEP_URL"
                );
                Err(Failure::Usage { problem })
            }
        }
    }
}

pub use remote::run as run_remotely;

pub async fn run(mut args: Args, around: &Surroundings) -> Result<Exit, Failure> {
    args.kept.must_be_absent()?;
    let terminal = args.terminal()?;
    let settings = config::load(args.file.config.as_deref(), &Flags::default(), around)?.settings;
    let mut signals = Signals::listen()?;
    let source = std::mem::take(&mut args.spec.source);
    let input =
        if source.takes_stdin() || args.asks_on_stdin() { Input::Taken } else { Input::Passed };
    let directory = args.spec.codebase.take().as_deref().map(codebase::directory).transpose()?;
    let draft =
        SpecDraft { host_mounts: args.volume.mounts()?, ..spec_draft(args.spec.into_json()?)? };
    let directory = match (directory, args.afterwards.given()) {
        (None, Some(option)) => {
            let problem = format!("{option} is for the changes of --codebase DIR");
            return Err(Failure::Usage { problem });
        }
        (directory, _) => directory.map(|directory| (directory, args.afterwards)),
    };
    let parent = std::env::temp_dir();
    place::sweep(&parent, &settings).await;
    let data = place::make(&parent)?;
    let place = TempDataDir::of(&data);
    let wanted = Wanted::by(&settings, draft.runtime.as_deref());
    let assembled = assemble::throwaway(&settings, data, &wanted).await;
    let result = match assembled {
        Ok(assembled) => {
            let command = exec_draft(args.exec, args.command, input);
            let broker = &assembled.broker;
            let result = match with_source(broker, draft, source).await {
                Ok(draft) => match directory {
                    None => in_sandbox(broker, draft, command, terminal, &mut signals).await,
                    Some(directory) => {
                        codebase::run(broker, draft, command, directory, terminal, &mut signals)
                            .await
                    }
                },
                Err(failure) => Err(failure),
            };
            assembled.close().await;
            result
        }
        Err(error) => Err(error.into()),
    };
    // If destroying failed, the directory stays, so that the next run finds it.
    if let Err(error) = place.remove() {
        let path = place.path().display();
        print::note(&format!("{path} could not be removed; the next run tries again: {error}"));
    }
    result
}

/// The program that clears up after killed runs, and after the one whose directory this is.
pub fn sweeper(dead: &Path) -> std::process::Command {
    let mut sweeper = std::process::Command::new("/proc/self/exe");
    sweeper.arg("sweep").arg(dead);
    sweeper
}

pub async fn sweep(dead: PathBuf) -> Result<Exit, Failure> {
    let settings = Settings::defaults(&Surroundings::of_this_process());
    if let Some(parent) = dead.parent() {
        place::sweep_after(&dead, parent, &settings).await;
    }
    Ok(Exit::Ok)
}

pub(super) fn spec_draft(json: Value) -> Result<SpecDraft, Failure> {
    serde_json::from_value(json).map_err(|e| Failure::Usage { problem: e.to_string() })
}

/// Who reads our stdin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// The command.
    Passed,
    /// Nobody: it was the archive of the workspace.
    Taken,
}

/// The draft with the requested workspace. The user of `run` reads with their own rights.
pub(super) async fn with_source(
    broker: &Broker,
    mut draft: SpecDraft,
    source: SourceArgs,
) -> Result<SpecDraft, Failure> {
    let Some(source) = source.hand_to(broker).await? else { return Ok(draft) };
    let source: SourceDraft =
        serde_json::from_value(source).map_err(|e| Failure::Usage { problem: e.to_string() })?;
    draft.source = Some(SourceDraft { reach: HostPaths::Any, ..source });
    Ok(draft)
}

fn exec_draft(args: ExecArgs, argv: Vec<String>, input: Input) -> ExecDraft {
    ExecDraft {
        timeout: args.timeout(),
        argv,
        cwd: args.cwd,
        user: args.user,
        stdin: match input {
            Input::Passed => StdinSource::Given,
            Input::Taken => StdinSource::None,
        },
        ..ExecDraft::default()
    }
}

/// Creates, runs, destroys; the sandbox is destroyed even if the command fails.
async fn in_sandbox(
    broker: &Broker,
    draft: SpecDraft,
    exec: ExecDraft,
    terminal: Option<Terminal>,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let who = Principal::local();
    let sandbox = broker.create(&who, draft).await?.id;
    let asking = terminal.map(|terminal| {
        let keeper = ask::Keeper::Broker(broker.clone());
        tokio::spawn(ask::about(keeper, sandbox.clone(), terminal))
    });
    let result = execute(broker, &sandbox, exec, signals).await;
    if let Some(asking) = asking {
        asking.abort();
    }
    broker.destroy(&who, &sandbox).await?;
    result
}

async fn execute(
    broker: &Broker,
    sandbox: &SandboxId,
    draft: ExecDraft,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let is_passed = draft.stdin == StdinSource::Given;
    let mut running = broker.exec(&Principal::local(), sandbox, draft).await?;
    if is_passed {
        tokio::spawn(pass_stdin(running.input.clone()));
    }
    let result = pass_output(&mut running, signals).await;
    let end = match result? {
        Ended::ByItself(end) => end,
        Ended::BySignal(signal) => return Ok(Exit::Command(signal.exit_code())),
    };
    print::ending(&end.outcome, end.error.as_deref());
    Ok(Exit::of_outcome(&end.outcome))
}

enum Ended {
    ByItself(ExecEnd),
    /// A second signal arrived before the command ended.
    BySignal(signals::Signal),
}

async fn pass_output(running: &mut Running, signals: &mut Signals) -> Result<Ended, Failure> {
    let mut told = false;
    loop {
        tokio::select! {
            event = running.next() => match event {
                Some(ExecEvent::Started | ExecEvent::Gap { .. }) => {}
                Some(ExecEvent::Output { stream: OutputStream::Stdout, data, .. }) => print::stdout(&data)?,
                Some(ExecEvent::Output { stream: OutputStream::Stderr, data, .. }) => print::stderr(&data)?,
                Some(ExecEvent::Ended(end)) => return Ok(Ended::ByItself(end)),
                None => return Err(Failure::Broker(Error::ShuttingDown)),
            },
            signal = signals.next() => if told { return Ok(Ended::BySignal(signal)) } else {
                    told = true;
                    // It may have just ended; then its end comes next.
                    if let Err(e) = running.signal(signal.number()).await {
                        tracing::debug!("the command did not get the signal: {e}");
                    }
                },
        }
    }
}

/// Passes stdin on as it arrives. The command may end without reading all of it.
async fn pass_stdin(input: ExecutionInput) {
    let mut stdin = tokio::io::stdin();
    while let Some(chunk) = stdin::next(&mut stdin).await {
        if input.write(&chunk).await.is_err() {
            return;
        }
    }
    let _ = input.close().await;
}
