//! `sandkeep shells`: shells that keep their state between commands, for programs and scripts. `sandkeep shell` is the
//! interactive one.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use crate::cli::argument::{duration, pair};
use crate::cli::awaited::{Awaited, Piped};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::show::words;
use crate::cli::{Format, print};
use sandkeep_client::{Client, Items};
use sandkeep_core::api::Shell;

/// Run commands in a shell that keeps its state between commands
///
/// The shell keeps its directory, variables, functions and options, also when the daemon restarts. For an
/// interactive shell in this terminal see `sandkeep shell`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: ShellsCommand,
}

#[derive(Debug, Subcommand)]
enum ShellsCommand {
    /// Open a shell and print its id
    Open(OpenArgs),
    /// List the shells of a sandbox
    Ls(LsArgs),
    Exec(ExecArgs),
    /// Close shells and kill everything that runs in them
    Close(CloseArgs),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Program {
    #[value(aliases = ["/bin/bash", "/usr/bin/bash"])]
    Bash,
    #[value(aliases = ["/bin/sh", "/usr/bin/sh"])]
    Sh,
}

#[derive(Debug, clap::Args)]
struct OpenArgs {
    /// Shell to run, by name or path [default: bash if the sandbox has it, else sh]
    #[arg(long, value_enum, value_name = "PROGRAM")]
    shell: Option<Program>,
    /// Working directory [default: the workspace, else from the image, else the user's home]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// User name or uid, optionally with :group or :gid [default: from the image, else `user`]
    #[arg(long, short = 'u', value_name = "USER")]
    user: Option<String>,
    /// Environment variable for the shell; repeatable
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    #[command(flatten)]
    format: Format,
    /// Sandbox name, id or unique prefix of an id
    id: String,
}

#[derive(Debug, clap::Args)]
struct LsArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    #[command(flatten)]
    format: Format,
}

/// Run a command in a shell, after any earlier ones
///
/// Several words are joined with spaces, as ssh does, so quote what must stay one word. Output and exit code are
/// those of the command, as with `sandkeep exec`. A timeout interrupts the command; a note says if the shell
/// had to be replaced or has ended.
#[derive(Debug, clap::Args)]
struct ExecArgs {
    /// Stream stdin to the command; with --json stdin is read completely first, up to 5 MiB
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Interrupt the command after this time, such as 500ms, 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    format: Format,
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Shell id or unique prefix
    shell: String,
    /// Command line for the shell
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct CloseArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Shell ids or unique prefixes
    #[arg(required = true, value_name = "SHELL")]
    shells: Vec<String>,
}

impl Args {
    /// Whether the exit code is that of a command.
    pub fn stand_for_a_command(&self) -> bool {
        matches!(self.command, ShellsCommand::Exec(_))
    }
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    match args.command {
        ShellsCommand::Open(args) => open(args, client).await,
        ShellsCommand::Ls(args) => ls(args, client).await,
        ShellsCommand::Exec(args) => exec(args, client).await,
        ShellsCommand::Close(args) => close(args, client).await,
    }
}

async fn open(args: OpenArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let mut body = Map::new();
    let shell = args.shell.map(|program| match program {
        Program::Bash => "bash",
        Program::Sh => "sh",
    });
    body.extend(shell.map(|shell| ("shell".to_owned(), json!(shell))));
    body.extend(args.cwd.map(|cwd| ("cwd".to_owned(), json!(cwd))));
    body.extend(args.user.map(|user| ("user".to_owned(), json!(user))));
    let env: BTreeMap<String, String> = args.env.into_iter().collect();
    body.insert("env".to_owned(), json!(env));
    let path = format!("/api/v1/sandboxes/{id}/shells");
    let opened = client.post(&path, &Value::Object(body)).await?;
    if args.format.json {
        print::json(&opened)?
    } else {
        print::line(client.read::<Shell>(opened)?.id.as_str())?
    }
    Ok(Exit::Ok)
}

async fn ls(args: LsArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let answer = client.get(&format!("/api/v1/sandboxes/{id}/shells")).await?;
    if args.format.json {
        print::json(&answer)?;
        return Ok(Exit::Ok);
    }
    let Items { items, .. } = client.read(answer)?;
    print::table(["ID", "SHELL", "USER", "STATE", "WAITING"], items.into_iter().map(row))?;
    Ok(Exit::Ok)
}

fn row(shell: Shell) -> [String; 5] {
    let user = shell.user.unwrap_or_else(|| "-".to_owned());
    let (program, state) = (words(shell.shell), words(shell.state));
    [shell.id.to_string(), program, user, state, shell.waiting.to_string()]
}

async fn exec(args: ExecArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let shell = client.resolve_shell(&id, &args.shell).await?;
    let path = format!("/api/v1/sandboxes/{id}/shells/{shell}/execs");
    let mut body = json!({ "command": args.command.join(" ") });
    if let Some(timeout) = args.timeout {
        body["timeout_ms"] = json!(sandkeep_core::millis(timeout));
    }
    let piped = match (args.stdin, args.format.json) {
        (false, _) => Piped::NotAtAll,
        (true, true) => Piped::AtOnce,
        (true, false) => Piped::AsItComes,
    };
    let awaited = Awaited { path: &path, sandbox: &id, body, piped };
    if args.format.json { awaited.whole(client).await } else { awaited.live(client).await }
}

async fn close(args: CloseArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    for text in &args.shells {
        let shell = client.resolve_shell(&id, text).await?;
        client.delete(&format!("/api/v1/sandboxes/{id}/shells/{shell}")).await?;
        print::line(shell.as_str())?;
    }
    Ok(Exit::Ok)
}
