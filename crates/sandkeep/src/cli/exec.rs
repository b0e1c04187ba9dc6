//! `sandkeep exec`: the command's output as it comes, and its exit code as ours.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::pin::pin;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::cli::argument::pair;
use crate::cli::client::Client;
use crate::cli::events::{self, Event, Last};
use crate::cli::exec_args::ExecArgs;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::terminal::{self, Typing};
use crate::cli::{Format, print, stdin};
use crate::limits::EXEC_STDIN_MAX_BYTES;

/// Run a command in a sandbox
///
/// Its output appears as it comes, and its exit code becomes that of this command (128+n for signal n,
/// 124 at the timeout, 137 out of memory, 125 if Sandkeep itself failed). Ctrl-C leaves it running; with
/// -it it is a key like any other, and the command ends with this one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Pass stdin on as it comes; with --json or -d it is read to its end first, up to 5 MiB
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Do not wait: print the exec's id; see it with `sandkeep logs` and `sandkeep ps`
    #[arg(long, short = 'd', conflicts_with = "json")]
    detach: bool,
    /// Give it a terminal; with -i also this one's keyboard
    #[arg(long, short = 't', conflicts_with_all = ["json", "detach"])]
    tty: bool,
    /// A variable for this command; may be given several times
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    #[command(flatten)]
    format: Format,
    /// The sandbox's id, or the beginning of it
    id: String,
    #[command(flatten)]
    pub exec: ExecArgs,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let (json, detach) = (args.format.json, args.detach);
    let id = client.resolve(&args.id).await?;
    let path = format!("/api/v1/sandboxes/{id}/execs");
    if args.tty {
        return in_terminal(args, client, &path).await;
    }
    let piped = args.piped();
    let mut body = body(args, piped)?;
    if detach {
        let answer = client.post_query(&path, &[("wait", "false")], &body).await?;
        print::line(answer["exec_id"].as_str().unwrap_or_default())?;
        return Ok(Exit::Ok);
    }
    if json {
        let answer = client.post(&path, &body).await.map_err(|e| told(client, e))?;
        print::json(&answer)?;
        let event = Event::deserialize(&answer).map_err(|e| client.not_sandkeep(e.to_string()))?;
        return Ok(event.ended(answer["outcome"].as_str().unwrap_or_default()));
    }
    // Whoever reads slowly from us slows the command, as a pipe between the two would.
    body["backpressure"] = json!(true);
    let response = client.post_live(&path, &body).await.map_err(|e| told(client, e))?;
    let last = match piped {
        Piped::NotAtAll | Piped::AtOnce => events::follow(client, response).await?,
        Piped::AsItComes => follow_and_feed(client, response, &path).await?,
    };
    match last {
        Last::Ended(exit) => Ok(exit),
        Last::Running => Err(client.went_away()),
    }
}

/// How our stdin gets to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piped {
    NotAtAll,
    /// With the request: nobody is there to send more.
    AtOnce,
    AsItComes,
}

impl Args {
    fn piped(&self) -> Piped {
        match (self.stdin, self.tty, self.detach || self.format.json) {
            // What is typed goes through its terminal.
            (false, ..) | (_, true, _) => Piped::NotAtAll,
            (true, false, true) => Piped::AtOnce,
            (true, false, false) => Piped::AsItComes,
        }
    }
}

/// Passes our stdin on to the command beside its output to us, until it ends.
async fn follow_and_feed(client: &Client, response: Response, path: &str) -> Result<Last, Failure> {
    let (begun, exec) = oneshot::channel();
    let mut begun = Some(begun);
    let follow = events::follow_begun(client, response, |id| {
        begun.take().map(|begun| begun.send(id));
    });
    let feed = async {
        // What never begins has said why.
        let Ok(exec) = exec.await else { return Ok(()) };
        stdin::pass(client, &format!("{path}/{exec}/stdin")).await
    };
    let (mut follow, mut feed) = (pin!(follow), pin!(feed));
    tokio::select! {
        last = &mut follow => return last,
        fed = &mut feed => fed?,
    }
    follow.await
}

/// Begins the command in a terminal and attaches this one to it.
async fn in_terminal(mut args: Args, client: &Client, path: &str) -> Result<Exit, Failure> {
    let typing = if args.stdin { Typing::Yes } else { Typing::No };
    if typing == Typing::Yes {
        terminal::must_be_terminal("leave out -t to send it as it is")?;
    }
    if !args.env.iter().any(|(name, _)| name == "TERM") {
        args.env.extend(terminal::kind().map(|term| ("TERM".to_owned(), term)));
    }
    let size = terminal::size();
    let mut body = body(args, Piped::NotAtAll)?;
    body["terminal"] = json!({ "rows": size.rows, "cols": size.cols });
    body["stdin_open"] = json!(typing == Typing::Yes);
    let answer = client.post_query(path, &[("wait", "false")], &body).await;
    let answer = answer.map_err(|e| told(client, e))?;
    let exec = answer["exec_id"].as_str();
    let exec = exec.ok_or_else(|| client.not_sandkeep("an exec without an id".to_owned()))?;
    // Whose keyboard is gone has nobody left to type for; output alone may be looked at later.
    let on_disconnect = match typing {
        Typing::Yes => "kill",
        Typing::No => "continue",
    };
    let query = [("on_disconnect", on_disconnect.to_owned())];
    let socket = client.websocket(&format!("{path}/{exec}/attach"), &query).await;
    if socket.is_err() && typing == Typing::Yes {
        // The failure itself is what is told.
        let _ = client.delete(&format!("{path}/{exec}")).await;
    }
    terminal::lend(client, socket?, typing).await
}

/// A daemon that was reached and then did not answer has the command, or had it.
fn told(client: &Client, failure: Failure) -> Failure {
    match failure {
        Failure::Unreachable { source, .. } if !source.is_connect() => client.went_away(),
        other => other,
    }
}

fn body(args: Args, stdin: Piped) -> Result<Value, Failure> {
    let env: BTreeMap<String, String> = args.env.into_iter().collect();
    let timeout_ms = args.exec.timeout_ms();
    let mut body = Map::new();
    body.insert("argv".to_owned(), json!(args.exec.command));
    body.insert("env".to_owned(), json!(env));
    body.extend(args.exec.cwd.map(|cwd| ("cwd".to_owned(), json!(cwd))));
    body.extend(args.exec.user.map(|user| ("user".to_owned(), json!(user))));
    body.extend(timeout_ms.map(|ms| ("timeout_ms".to_owned(), json!(ms))));
    match stdin {
        Piped::NotAtAll => {}
        Piped::AtOnce => {
            body.insert("stdin_b64".to_owned(), json!(STANDARD.encode(read_stdin()?)));
        }
        Piped::AsItComes => {
            body.insert("stdin_open".to_owned(), json!(true));
            body.insert("on_disconnect".to_owned(), json!("close_stdin"));
        }
    }
    Ok(Value::Object(body))
}

fn read_stdin() -> Result<Vec<u8>, Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        print::note("reading stdin; end it with Ctrl-D");
    }
    let mut bytes = Vec::new();
    let over = EXEC_STDIN_MAX_BYTES as u64 + 1;
    stdin.take(over).read_to_end(&mut bytes).map_err(Failure::system("read stdin"))?;
    if bytes.len() > EXEC_STDIN_MAX_BYTES {
        return Err(Failure::TooMuchStdin { max_bytes: EXEC_STDIN_MAX_BYTES });
    }
    Ok(bytes)
}
