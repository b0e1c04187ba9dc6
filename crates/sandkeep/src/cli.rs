//! The `sandkeep` command: parse, dispatch, one exit code. Commands that talk to a daemon use `sandkeep_client`;
//! `serve` and `run` contain a broker, which `assemble` puts together.

mod apply;
mod argument;
mod assemble;
mod audit;
mod awaited;
mod codebase;
mod codebase_args;
mod completions;
mod config;
mod cp;
mod create;
mod diff;
mod doctor;
pub mod embed;
mod ensure;
mod env_file;
mod event_log;
mod events;
mod exec;
mod exec_args;
mod exit;
mod failure;
mod filter;
mod fork;
mod keys;
mod kill;
mod lifecycle;
mod limit_args;
mod log;
mod logs;
mod ls;
mod man;
#[cfg(feature = "mcp")]
mod mcp;
mod network;
mod network_args;
mod parsed;
mod pause;
mod placeholders;
mod port;
mod print;
mod process;
mod processes;
mod progress;
mod ps;
mod publish;
mod race;
mod revert;
mod rm;
mod rollback;
mod run;
mod runtimes;
mod screen;
mod serve;
mod set;
mod several;
mod shell;
mod shells;
mod show;
mod snapshot;
mod source_args;
mod spec_args;
mod spinner;
mod stats;
mod stdin;
mod template;
mod terminal;
mod tool;
mod tool_config;
mod tools;
mod usage;
mod version;
mod webhook;
mod words;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use reqwest::Url;

use crate::config::{Surroundings, client_log};
use exit::Exit;
use failure::Failure;
use sandkeep_client::{ApiKey, Client, Error as Api, URL_DEFAULT};
use sandkeep_core::Verb;
use sandkeep_traces::Recorder;
use serve::traces::Traces;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Isolated computers for AI agents
///
/// `sandkeep serve` starts the daemon; the other commands create sandboxes and run commands in them.
/// `sandkeep run -- CMD` runs one command in a throwaway sandbox and needs no daemon.
#[derive(Debug, Parser)]
#[command(name = "sandkeep", version, after_long_help = Exit::help(), arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Args)]
struct Global {
    /// Address of the daemon [default: http://127.0.0.1:4500]
    #[arg(
        long,
        global = true,
        env = "SANDKEEP_URL",
        hide_env_values = true,
        help_heading = "Global options",
        value_name = "URL",
        value_parser = argument::daemon_url
    )]
    url: Option<Url>,

    /// PEM file with the certificates to trust for an https daemon, instead of the system's
    #[arg(
        long,
        global = true,
        env = "SANDKEEP_CA_FILE",
        hide_env_values = true,
        help_heading = "Global options",
        value_name = "FILE"
    )]
    ca_file: Option<PathBuf>,

    /// Log level on stderr: off, error, warn, info, debug, trace, or a filter like
    /// sandkeep_broker=debug; also SANDKEEP_LOG [default: info for serve, else warn]
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "LEVEL",
        value_parser = crate::config::read_log
    )]
    log: Option<String>,
}

impl Global {
    /// The client for the daemon. The API key has no flag, because other users can read the flags of a process.
    fn client(&self, around: &Surroundings) -> Result<Client, Failure> {
        let key = around.var(ApiKey::VARIABLE).map(|key| ApiKey::new(key)).transpose()?;
        let default = || URL_DEFAULT.parse().expect("the default is a URL");
        let url = self.url.clone().unwrap_or_else(default);
        Client::new(&url, key, self.ca_file.as_deref()).map_err(|error| match error {
            Api::Certificates { .. } => Failure::Usage { problem: format!("--ca-file {error}") },
            other => other.into(),
        })
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Run(run::Args),
    Create(create::Args),
    Ensure(ensure::Args),
    Ls(ls::Args),
    /// Show one sandbox
    Show(show::Args),
    Set(set::Args),
    Exec(exec::Args),
    Ps(ps::Args),
    Logs(logs::Args),
    Cp(cp::Args),
    Kill(kill::Args),
    Shell(shell::Args),
    Shells(shells::Args),
    /// Start stopped or failed sandboxes
    Start(lifecycle::SeveralArgs),
    /// Stop sandboxes; their files are kept
    Stop(lifecycle::SeveralArgs),
    Pause(pause::PauseArgs),
    /// Resume paused sandboxes
    Resume(lifecycle::SeveralArgs),
    Snapshot(snapshot::SnapshotArgs),
    /// List the snapshots of a sandbox, including turns
    Snapshots(snapshot::ListArgs),
    /// Record a turn: a snapshot with the next number
    Turn(snapshot::TurnArgs),
    Rollback(rollback::RollbackArgs),
    Fork(fork::ForkArgs),
    Race(race::RaceArgs),
    Log(log::LogArgs),
    Events(event_log::EventsArgs),
    Webhook(webhook::WebhookArgs),
    /// Destroy sandboxes and everything in them
    Rm(rm::Args),
    Diff(diff::DiffArgs),
    Revert(revert::RevertArgs),
    Apply(apply::ApplyArgs),
    Network(network::NetworkCommandArgs),
    Port(port::Args),
    Process(process::ProcessArgs),
    /// The former name of `process ls`
    #[command(hide = true)]
    Processes(processes::Args),
    Stats(stats::Args),
    Usage(usage::UsageArgs),
    Template(template::Args),
    Codebase(codebase::CodebaseArgs),
    #[cfg(feature = "mcp")]
    Mcp(mcp::Args),
    Tool(tool::Args),
    /// List the tools for agents
    Tools(tools::Args),
    Keys(keys::Args),
    Audit(audit::Args),
    /// List the runtimes and whether they work on this machine
    Runtimes(runtimes::Args),
    Config(config::ConfigArgs),
    Doctor(doctor::DoctorArgs),
    /// Measure the speed on this machine, compared with other ways to run a command
    #[cfg(feature = "bench")]
    Bench(sandkeep_bench::BenchArgs),
    /// Print the version
    Version(version::Args),
    Completions(completions::Args),
    Man(man::ManArgs),
    /// The helper process that creates sandboxes; started by the daemon itself
    #[command(hide = true)]
    Launcher {
        /// The data directory it works for; only for identification
        #[arg(long)]
        instance: String,
        /// When the process it works for is killed, clear up this data directory of it, and others beside that
        #[arg(long, value_name = "DIR")]
        sweep: Option<PathBuf>,
    },
    /// The short-lived process that becomes an external tool; started by the daemon itself
    #[command(hide = true)]
    Stage,
    /// The process that works on the files of a codebase; started by the daemon itself
    #[command(hide = true)]
    Jail {
        directory: PathBuf,
        owner: u32,
    },
    /// The process that serves a directory under its rules; started by the daemon itself
    #[command(hide = true)]
    Rulefs,
    /// Clean up after killed runs
    #[command(hide = true)]
    Sweep {
        /// The data directory of the one that was killed last; the others are beside it
        dead: PathBuf,
    },
}

/// The output format of a command.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Format {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The whole program.
pub fn main() -> ExitCode {
    let matches = parsed::matches(Cli::command());
    let Cli { global, command } = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    if let Command::Launcher { sweep, .. } = command {
        // It makes processes by clone, so it must stay without threads, and so without tokio.
        return sandkeep_sys::launcher::main(sweep.map(|data| run::sweeper(&data)));
    }
    if let Command::Stage = command {
        return sandkeep_sys::stage::main();
    }
    if let Command::Jail { directory, owner } = &command {
        return sandkeep_sys::jail::main(directory, *owner);
    }
    if let Command::Rulefs = command {
        return sandkeep_rulefs::main();
    }
    sandkeep_outgoing::crypto::provide();
    let own_failure = match &command {
        Command::Run(_) | Command::Exec(_) | Command::Shell(_) => Some(Exit::SandkeepFailed),
        Command::Shells(args) if args.stand_for_a_command() => Some(Exit::SandkeepFailed),
        _ => None,
    };
    let exit = match dispatch(global, command) {
        Ok(exit) => exit,
        Err(failure) if failure.is_broken_pipe() => Exit::OutputClosed,
        Err(failure) => {
            let exit = own_failure.unwrap_or_else(|| Exit::of_failure(&failure));
            if wants_json(&matches) {
                print::failure(&failure.json(exit))
            } else {
                print::note(&failure.line())
            }
            exit
        }
    };
    ExitCode::from(exit.code())
}

/// Whether the command, or one within it, was given `--json`. That of `tool` is something else: its arguments.
fn wants_json(matches: &ArgMatches) -> bool {
    let here = matches.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or(false);
    here || matches.subcommand().is_some_and(|(_, inner)| wants_json(inner))
}

fn dispatch(global: Global, command: Command) -> Result<Exit, Failure> {
    let around = Surroundings::of_this_process();
    let command = match command {
        Command::Serve(args) => {
            let loaded = args.load(global.log, &around)?;
            let (recorder, traces) = Traces::of(&loaded.settings.otel)?;
            start_log(&loaded.settings.log, recorder)?;
            return with_threads(serve::run(loaded, traces, &around));
        }
        Command::Config(args) => return config::run(args, global.log, &around),
        other => other,
    };
    start_log(&client_log(global.log.clone(), &around)?, Recorder::idle())?;
    let client = || global.client(&around);
    match command {
        Command::Run(args) => match global.url {
            Some(_) => with_one_thread(run::run_remotely(args, &client()?)),
            None => with_threads(run::run(args, &around)),
        },
        Command::Create(args) => with_one_thread(create::run(args, &client()?)),
        Command::Ensure(args) => with_one_thread(ensure::run(args, &client()?)),
        Command::Ls(args) => with_one_thread(ls::run(args, &client()?)),
        Command::Show(args) => with_one_thread(show::run(args, &client()?)),
        Command::Set(args) => with_one_thread(set::run(args, &client()?)),
        Command::Exec(args) => with_one_thread(exec::run(args, &client()?)),
        Command::Ps(args) => with_one_thread(ps::run(args, &client()?)),
        Command::Cp(args) => with_one_thread(cp::run(args, &client()?)),
        Command::Logs(args) => with_one_thread(logs::run(args, &client()?)),
        Command::Kill(args) => with_one_thread(kill::run(args, &client()?)),
        Command::Shell(args) => with_one_thread(shell::run(args, &client()?)),
        Command::Shells(args) => with_one_thread(shells::run(args, &client()?)),
        Command::Start(args) => with_one_thread(lifecycle::run(Verb::Start, args, &client()?)),
        Command::Stop(args) => with_one_thread(lifecycle::run(Verb::Stop, args, &client()?)),
        Command::Pause(args) => with_one_thread(pause::run(args, &client()?)),
        Command::Resume(args) => with_one_thread(lifecycle::run(Verb::Resume, args, &client()?)),
        Command::Diff(args) => with_one_thread(diff::run(args, &client()?)),
        Command::Revert(args) => with_one_thread(revert::run(args, &client()?)),
        Command::Apply(args) => with_one_thread(apply::run(args, &client()?)),
        Command::Snapshot(args) => with_one_thread(snapshot::run(args, &client()?)),
        Command::Snapshots(args) => with_one_thread(snapshot::list(args, &client()?)),
        Command::Turn(args) => with_one_thread(snapshot::turn(args, &client()?)),
        Command::Rollback(args) => with_one_thread(rollback::run(args, &client()?)),
        Command::Fork(args) => with_one_thread(fork::run(args, &client()?)),
        Command::Race(args) => with_one_thread(race::run(args, &client()?)),
        Command::Log(args) => with_one_thread(log::run(args, &client()?)),
        Command::Events(args) => with_one_thread(event_log::run(args, &client()?)),
        Command::Webhook(args) => with_one_thread(webhook::run(args, &client()?)),
        Command::Network(args) => with_one_thread(network::run(args, &client()?)),
        Command::Port(args) => with_one_thread(port::run(args, &client()?)),
        Command::Process(args) => with_one_thread(process::run(args, &client()?)),
        Command::Processes(args) => with_one_thread(processes::run(args, &client()?)),
        Command::Rm(args) => with_one_thread(rm::run(args, &client()?)),
        Command::Usage(args) => with_one_thread(usage::run(args, &client()?)),
        Command::Stats(args) => with_one_thread(stats::run(args, &client()?)),
        Command::Codebase(args) => with_one_thread(codebase::run(args, &client()?)),
        Command::Template(args) => with_one_thread(template::run(args, &client()?)),
        #[cfg(feature = "mcp")]
        Command::Mcp(args) => match global.url {
            Some(_) => with_one_thread(mcp::relay(args, client()?)),
            None => with_threads(mcp::alone(args, &around)),
        },
        Command::Tool(args) => with_one_thread(tool::run(args, &client()?)),
        Command::Tools(args) => tools::run(args),
        Command::Keys(args) => keys::run(args, &global, &around),
        Command::Audit(args) => audit::run(args, &global, &around),
        Command::Runtimes(args) => with_one_thread(runtimes::run(args, &client()?)),
        Command::Doctor(args) => with_threads(doctor::run(args, &around)),
        #[cfg(feature = "bench")]
        Command::Bench(args) => with_threads(bench(args)),
        Command::Version(args) => version::run(args),
        Command::Man(args) => man::run(&args),
        Command::Completions(args) => completions::run(args),
        Command::Sweep { dead } => with_threads(run::sweep(dead)),
        Command::Serve(_)
        | Command::Config(_)
        | Command::Launcher { .. }
        | Command::Stage
        | Command::Jail { .. }
        | Command::Rulefs => unreachable!("they are done with before"),
    }
}

#[cfg(feature = "bench")]
async fn bench(args: sandkeep_bench::BenchArgs) -> Result<Exit, Failure> {
    let report = sandkeep_bench::run(args).await.map_err(|e| Failure::Tool(Box::new(e)))?;
    print::line(&report)?;
    Ok(Exit::Ok)
}

fn start_log(filter: &str, recorder: Recorder) -> Result<(), Failure> {
    let parsed = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|e| Failure::Usage { problem: format!("--log: {e}") })?;
    let parsed = if filter.contains(NATS_CLIENT) {
        parsed
    } else {
        // It tells of every attempt to connect, and in its own words. We tell of changes.
        parsed.add_directive(format!("{NATS_CLIENT}=off").parse().map_err(
            |e: tracing_subscriber::filter::ParseError| Failure::Usage {
                problem: format!("--log: {e}"),
            },
        )?)
    };
    let stderr = std::io::stderr;
    let log = tracing_subscriber::fmt::layer().with_writer(stderr);
    let log = log.with_ansi(stderr().is_terminal()).with_filter(parsed);
    let wanted = recorder.filter();
    tracing_subscriber::registry().with(log).with(recorder.with_filter(wanted)).init();
    Ok(())
}

/// The library's name in log filters.
const NATS_CLIENT: &str = "async_nats";

/// For commands that hold a broker: its supervisors and requests run side by side.
fn with_threads(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    block_on(builder.worker_threads(workers), work)
}

/// For commands that only talk to a daemon.
fn with_one_thread(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    block_on(&mut tokio::runtime::Builder::new_current_thread(), work)
}

fn block_on(
    builder: &mut tokio::runtime::Builder,
    work: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let runtime = builder.enable_all().build().map_err(Failure::system("start threads"))?;
    let result = runtime.block_on(work);
    // A thread may still be reading a line from the terminal; nothing is lost by leaving it.
    runtime.shutdown_background();
    result
}
