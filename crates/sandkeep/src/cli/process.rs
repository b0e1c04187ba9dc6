//! `sandkeep process`: servers and other commands that keep running.

use std::collections::BTreeMap;

use clap::Subcommand;
use serde_json::json;

use crate::cli::argument::seconds;
use crate::cli::env_file::EnvArgs;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, logs, print, processes, spinner};
use sandkeep_client::Client;
use sandkeep_core::api::{CreateProcess, Process, ProcessReady, ProcessStatus};
use sandkeep_core::{Port, limits::PROCESS_READY_DEFAULT};

/// Start, list, read and stop long-running processes, such as servers
///
/// A process has no timeout and does not end with its client. Its outcome is kept until the sandbox is destroyed.
#[derive(Debug, clap::Args)]
pub struct ProcessArgs {
    #[command(subcommand)]
    command: ProcessCommand,
}

#[derive(Debug, Subcommand)]
enum ProcessCommand {
    Start(StartArgs),
    /// List the processes of a sandbox, including ended ones
    Ls(processes::Args),
    /// Print the output of a process
    Logs(LogsArgs),
    Stop(StopArgs),
}

/// Start a process and print its id
///
/// With --ready or --ready-path, waits until it is ready. If it ends before that, prints the end of its output and
/// fails.
#[derive(Debug, clap::Args)]
struct StartArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Port that it serves; `sandkeep port` prints its URL
    #[arg(long, short = 'p', value_name = "PORT")]
    port: Option<Port>,
    /// Wait until the port accepts connections
    #[arg(long, requires = "port")]
    ready: bool,
    /// Wait until a GET of this path, such as /health, is answered with a status below 400
    #[arg(long, value_name = "PATH", requires = "port", conflicts_with = "ready")]
    ready_path: Option<String>,
    /// How long to wait [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    ready_timeout: Option<u64>,
    /// Working directory [default: the workspace, else from the image, else the user's home]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// User name or uid, optionally with :group or :gid [default: from the image, else `user`]
    #[arg(long, short = 'u', value_name = "USER")]
    user: Option<String>,
    #[command(flatten)]
    env: EnvArgs,
    #[command(flatten)]
    format: Format,
    /// Command and arguments, after `--`
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct LogsArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Process id or unique prefix [default: the last one that was started]
    process: Option<String>,
    #[command(flatten)]
    part: logs::PartArgs,
}

/// Stop processes: SIGTERM to the whole process tree, after ten seconds SIGKILL to the rest
#[derive(Debug, clap::Args)]
struct StopArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Process ids or unique prefixes
    #[arg(required_unless_present = "all", value_name = "PROCESS")]
    processes: Vec<String>,
    /// All running processes of the sandbox
    #[arg(long, conflicts_with = "processes")]
    all: bool,
}

pub async fn run(args: ProcessArgs, client: &Client) -> Result<Exit, Failure> {
    match args.command {
        ProcessCommand::Start(args) => start(args, client).await,
        ProcessCommand::Ls(args) => processes::run(args, client).await,
        ProcessCommand::Logs(args) => show(args, client).await,
        ProcessCommand::Stop(args) => stop(args, client).await,
    }
}

async fn start(args: StartArgs, client: &Client) -> Result<Exit, Failure> {
    let env: BTreeMap<String, String> = args.env.read()?;
    let waits = args.ready || args.ready_path.is_some();
    let ready = waits.then_some(ProcessReady {
        tcp: args.ready.then_some(true),
        http_path: args.ready_path,
        timeout_secs: args.ready_timeout,
    });
    let request = CreateProcess {
        argv: Some(args.command),
        env: (!env.is_empty()).then_some(env),
        cwd: args.cwd,
        user: args.user,
        port: args.port,
        ready,
        ..CreateProcess::default()
    };
    let id = client.resolve(&args.id).await?;
    let started = client.start_process(&id, &request);
    let Process { process, last_output, url, address } =
        spinner::during("starting", started).await?;
    let (name, status) = (process.id.clone(), process.status);
    if args.format.json {
        print::json(&json!(Process { process, last_output: last_output.clone(), url, address }))?
    } else {
        print::line(name.as_str())?
    }
    match status {
        ProcessStatus::Exited if waits => {
            if let Some(output) = last_output.filter(|_| !args.format.json) {
                print::stderr(output.as_bytes())?;
            }
            print::note("the process ended before it was ready; `sandkeep process ls` shows how");
            Ok(Exit::RequestFailed)
        }
        ProcessStatus::Starting if waits => {
            let secs = args.ready_timeout.unwrap_or(PROCESS_READY_DEFAULT.as_secs());
            print::note(&format!("the process is not ready after {secs} s, and continues"));
            Ok(Exit::Ok)
        }
        _ => Ok(Exit::Ok),
    }
}

async fn show(args: LogsArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let process = match &args.process {
        Some(text) => client.resolve_process(&id, text).await?,
        None => {
            let newest = client.processes(&id).await?.items.into_iter().next_back();
            let problem = format!("{id} has no processes; `sandkeep process start` starts one");
            newest.ok_or(Failure::Usage { problem })?.process.id
        }
    };
    logs::show(&process.exec(), args.part, &id, client).await?;
    Ok(Exit::Ok)
}

async fn stop(args: StopArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let processes = if args.all {
        let all = client.processes(&id).await?.items.into_iter().map(|shown| shown.process);
        let running = all.filter(|process| process.status != ProcessStatus::Exited);
        running.map(|process| process.id.into()).collect()
    } else {
        args.processes
    };
    let (mut failed, all) = (0, processes.len());
    for text in processes {
        let stopped = async {
            let process = client.resolve_process(&id, &text).await?;
            client.end_process(&id, &process).await.map(|()| process)
        };
        match spinner::during("stopping", stopped).await {
            Ok(process) => print::line(process.as_str())?,
            Err(error) if all == 1 => return Err(error.into()),
            Err(error) => {
                print::note(&Failure::from(error).line());
                failed += 1;
            }
        }
    }
    match failed {
        0 => Ok(Exit::Ok),
        failed => Err(Failure::Some { failed, all }),
    }
}
