//! `sandkeep shells`: shells that keep their state from command to command, for programs and scripts. The
//! interactive one is `sandkeep shell`.

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

/// Run commands in a shell that keeps directory, variables, functions and options between them
///
/// Open one, give it commands one after the other, and close it. It lives on between the commands, also
/// when the daemon is restarted. For a shell in this terminal see `sandkeep shell`.
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
    /// End shells and all that runs in them
    Close(CloseArgs),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Program {
    Bash,
    Sh,
}

#[derive(Debug, clap::Args)]
struct OpenArgs {
    /// Which [default: bash where there is one, else sh]
    #[arg(long, value_enum, value_name = "PROGRAM")]
    shell: Option<Program>,
    /// The working directory [default: the image's, else the user's home]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Who runs it: a name or uid, and maybe :group or :gid [default: the image's, else user]
    #[arg(long, short = 'u', value_name = "USER")]
    user: Option<String>,
    /// A variable for it; may be given several times
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    #[command(flatten)]
    format: Format,
    /// The sandbox's id, or the beginning of it
    id: String,
}

#[derive(Debug, clap::Args)]
struct LsArgs {
    /// The sandbox's id, or the beginning of it
    id: String,
    #[command(flatten)]
    format: Format,
}

/// Run a command in a shell, after those before it
///
/// Several words are joined with spaces, as ssh does: quote what the shell shall see as one. Output and exit
/// code are those of the command, as with `sandkeep exec`. At the timeout the command is interrupted; if
/// the shell had to be replaced, or has ended with the command, a note says so.
#[derive(Debug, clap::Args)]
struct ExecArgs {
    /// Pass stdin on as it comes; with --json it is read to its end first, up to 5 MiB
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Interrupt it after this long, such as 500ms, 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    format: Format,
    /// The sandbox's id, or the beginning of it
    id: String,
    /// The shell's id, or the beginning of it
    shell: String,
    /// The command, in the language of the shell
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct CloseArgs {
    /// The sandbox's id, or the beginning of it
    id: String,
    /// The ids of shells, or the beginnings of them
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
    match args.format.json {
        true => print::json(&opened)?,
        false => print::line(client.read::<Shell>(opened)?.id.as_str())?,
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
    let execs = format!("/api/v1/sandboxes/{id}/execs");
    let mut body = json!({ "command": args.command.join(" ") });
    if let Some(timeout) = args.timeout {
        body["timeout_ms"] = json!(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    }
    let piped = match (args.stdin, args.format.json) {
        (false, _) => Piped::NotAtAll,
        (true, true) => Piped::AtOnce,
        (true, false) => Piped::AsItComes,
    };
    let awaited = Awaited { path: &path, execs: &execs, body, piped };
    match args.format.json {
        true => awaited.whole(client).await,
        false => awaited.live(client).await,
    }
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
