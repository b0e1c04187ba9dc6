//! `sandkeep exec`: prints the command's output as it arrives, and exits with its exit code.

use serde_json::{Map, Value, json};

use crate::cli::Format;
use crate::cli::awaited::{Awaited, Piped, told};
use crate::cli::env_file::EnvArgs;
use crate::cli::exec_args::ExecArgs;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::limit_args::LimitArgs;
use crate::cli::terminal::{self, Typing};
use sandkeep_client::{Client, ExecStarted};

/// Run a command in a sandbox
///
/// Prints the output as it arrives and exits with the command's exit code (128+n for signal n, 124 for a
/// timeout, 137 for out of memory, 125 if Sandkeep itself failed). Ctrl-C disconnects, leaves the
/// command running, and says how to follow or end it; with -it Ctrl-C goes to the command, which ends when the client disconnects.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Stream stdin to the command; with --json or -d stdin is read completely first, up to 5 MiB
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Print the exec id and return at once; use `sandkeep logs` and `sandkeep ps` later
    #[arg(long, short = 'd', conflicts_with = "json")]
    detach: bool,
    /// Allocate a terminal; with -i also connect this keyboard
    #[arg(long, short = 't', conflicts_with_all = ["json", "detach"])]
    tty: bool,
    #[command(flatten)]
    env: EnvArgs,
    #[command(flatten)]
    format: Format,
    /// Sandbox name, id or unique prefix of an id
    id: String,
    #[command(flatten)]
    pub exec: ExecArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// Command and arguments, after `--` [default: the image's command]
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let (json, detach) = (args.format.json, args.detach);
    let id = client.resolve(&args.id).await?;
    let path = format!("/api/v1/sandboxes/{id}/execs");
    if args.tty {
        return in_terminal(args, client, &path).await;
    }
    let piped = args.piped();
    let awaited = Awaited { path: &path, sandbox: &id, body: body(args)?, piped };
    match (detach, json) {
        (true, _) => awaited.detached(client).await,
        (false, true) => awaited.whole(client).await,
        (false, false) => awaited.live(client).await,
    }
}

impl Args {
    fn piped(&self) -> Piped {
        match (self.stdin, self.tty, self.detach || self.format.json) {
            // Keyboard input goes through its terminal.
            (false, ..) | (_, true, _) => Piped::NotAtAll,
            (true, false, true) => Piped::AtOnce,
            (true, false, false) => Piped::AsItComes,
        }
    }
}

/// Starts the command in a terminal and attaches this one to it.
async fn in_terminal(args: Args, client: &Client, path: &str) -> Result<Exit, Failure> {
    let typing = if args.stdin { Typing::Yes } else { Typing::No };
    if typing == Typing::Yes {
        terminal::must_be_terminal("leave out -t to send it as it is")?;
    }
    let size = terminal::size();
    let mut body = body(args)?;
    if let Some(term) = terminal::kind().filter(|_| body["env"].get("TERM").is_none()) {
        body["env"]["TERM"] = json!(term);
    }
    body["terminal"] = json!({ "rows": size.rows, "cols": size.cols });
    body["stdin_open"] = json!(typing == Typing::Yes);
    let begun = client.post_query(path, &[("wait", "false")], &body).await;
    let ExecStarted { exec_id: exec } = begun.map_err(|e| told(client, e))?;
    // Without a keyboard nobody can type any more; output alone may be read later.
    let on_disconnect = match typing {
        Typing::Yes => "kill",
        Typing::No => "continue",
    };
    let query = [("on_disconnect", on_disconnect.to_owned())];
    let socket = client.websocket(&format!("{path}/{exec}/attach"), &query).await;
    if socket.is_err() && typing == Typing::Yes {
        // The failure itself is reported.
        let _ = client.delete(&format!("{path}/{exec}")).await;
    }
    terminal::lend(client, socket?, typing).await
}

fn body(args: Args) -> Result<Value, Failure> {
    let env = args.env.read()?;
    let timeout_ms = args.exec.timeout_ms();
    let mut body = Map::new();
    body.insert("argv".to_owned(), json!(args.command));
    body.insert("env".to_owned(), json!(env));
    body.extend(args.exec.cwd.map(|cwd| ("cwd".to_owned(), json!(cwd))));
    body.extend(args.exec.user.map(|user| ("user".to_owned(), json!(user))));
    body.extend(args.limits.into_json().map(|own| ("resources".to_owned(), own.into())));
    body.extend(timeout_ms.map(|ms| ("timeout_ms".to_owned(), json!(ms))));
    Ok(Value::Object(body))
}
