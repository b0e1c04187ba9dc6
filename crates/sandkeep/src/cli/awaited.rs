//! A command in a sandbox whose process this one represents: its output is printed as it arrives, our stdin is passed
//! to it, and its exit code becomes ours.

use std::cell::OnceCell;
use std::io::{IsTerminal, Read};
use std::pin::pin;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::cli::events::{self, Last};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{print, stdin};
use sandkeep_client::{Client, Error, ExecStarted, Response};
use sandkeep_core::{
    ExecId, SandboxId,
    api::ExecAnswer,
    limits::{EXEC_END_TOLD, EXEC_STDIN_MAX_BYTES},
};

/// How our stdin gets to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piped {
    NotAtAll,
    /// With the request; no more can be sent later.
    AtOnce,
    AsItComes,
}

/// A command to run.
pub struct Awaited<'a> {
    /// The path of the request.
    pub path: &'a str,
    /// Where it runs.
    pub sandbox: &'a SandboxId,
    /// The request without stdin.
    pub body: Value,
    pub piped: Piped,
}

impl Awaited<'_> {
    /// Prints the id of the exec, and does not wait for it.
    pub async fn detached(self, client: &Client) -> Result<Exit, Failure> {
        let query = [("wait", "false")];
        let begun: ExecStarted = client.post_query(self.path, &query, &self.request()?).await?;
        print::line(begun.exec_id.as_str())?;
        Ok(Exit::Ok)
    }

    /// Prints the whole answer at the end.
    pub async fn whole(self, client: &Client) -> Result<Exit, Failure> {
        let answer = client.post(self.path, &self.request()?).await;
        let answer = answer.map_err(|e| told(client, e))?;
        print::json(&answer)?;
        let ExecAnswer { status, ending, .. } = client.read(answer)?;
        Ok(events::ended(status, &ending))
    }

    /// Passes everything through as it comes. Ctrl-C ends this process and leaves the command running.
    pub async fn live(self, client: &Client) -> Result<Exit, Failure> {
        let mut interrupts =
            unix::signal(SignalKind::interrupt()).map_err(Failure::system("handle signals"))?;
        let (sandbox, begun) = (self.sandbox, OnceCell::new());
        tokio::select! {
            ended = self.follow(client, &begun) => return ended,
            _ = interrupts.recv() => {}
        }
        if let Some(exec) = begun.get() {
            print::note(&format!(
                "disconnected; the command continues: follow it with `sandkeep logs -f {sandbox} {exec}`, or end it \
                 with `sandkeep kill {sandbox} {exec}`"
            ));
        }
        sandkeep_sys::signal::end_by(SignalKind::interrupt().as_raw_value())
    }

    /// Passes everything through, and tells when the command has begun.
    pub async fn follow(self, client: &Client, begun: &OnceCell<ExecId>) -> Result<Exit, Failure> {
        let mut body = self.request()?;
        // A slow reader of our output slows the command, as a pipe between the two would.
        body["backpressure"] = json!(true);
        let response = client.post_live(self.path, &body).await.map_err(|e| told(client, e))?;
        let last = match self.piped {
            Piped::NotAtAll | Piped::AtOnce => {
                events::follow_begun(client, response, |id| drop(begun.set(id))).await?
            }
            Piped::AsItComes => {
                let execs = format!("/api/v1/sandboxes/{}/execs", self.sandbox);
                follow_and_feed(client, response, &execs, begun).await?
            }
        };
        match last {
            Last::Ended(exit) => Ok(exit),
            Last::Running => Err(client.went_away().into()),
        }
    }

    fn request(&self) -> Result<Value, Failure> {
        let mut body = self.body.clone();
        match self.piped {
            Piped::NotAtAll => {}
            Piped::AtOnce => body["stdin_b64"] = json!(STANDARD.encode(read_stdin()?)),
            Piped::AsItComes => {
                body["stdin_open"] = json!(true);
                if body.get("on_disconnect").is_none() {
                    body["on_disconnect"] = json!("close_stdin");
                }
            }
        }
        Ok(body)
    }
}

/// Passes our stdin to the command, and its output to us, until it ends.
async fn follow_and_feed(
    client: &Client,
    response: Response,
    execs: &str,
    begun: &OnceCell<ExecId>,
) -> Result<Last, Failure> {
    let (tell, exec) = oneshot::channel();
    let mut tell = Some(tell);
    let follow = events::follow_begun(client, response, |id| {
        drop(begun.set(id.clone()));
        tell.take().map(|tell| tell.send(id));
    });
    let feed = async {
        // If the exec never starts, the reason was already reported.
        let Ok(exec) = exec.await else { return Ok(()) };
        stdin::pass(client, &format!("{execs}/{exec}/stdin")).await
    };
    let (mut follow, mut feed) = (pin!(follow), pin!(feed));
    let fed = tokio::select! {
        last = &mut follow => return last,
        fed = &mut feed => fed,
    };
    match fed {
        Ok(()) => follow.await,
        // A command that has ended takes no more input, and the connection is reset; its end then arrives shortly.
        Err(cut_off) => timeout(EXEC_END_TOLD, follow).await.unwrap_or(Err(cut_off)),
    }
}

/// If a daemon was reached and then did not answer, it may have received the command.
pub fn told(client: &Client, error: Error) -> Error {
    match error {
        Error::Unreachable { source, .. } if !source.is_connect() => client.went_away(),
        other => other,
    }
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
