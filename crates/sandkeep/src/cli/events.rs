//! What an exec says, from the daemon's stream of events to our own stdout and stderr.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Response;
use serde::Deserialize;

use crate::cli::client::Client;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::ndjson::Lines;
use crate::cli::print;
use sandkeep_guestlink::Outcome;

/// One line of what an exec says.
#[derive(Debug, Deserialize)]
pub struct Event {
    #[serde(default)]
    pub r#type: String,
    exec_id: Option<String>,
    data: Option<String>,
    data_b64: Option<String>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    error: Option<String>,
    stream: Option<String>,
    from: Option<u64>,
    to: Option<u64>,
    reason: Option<String>,
    /// What became of the shell whose command it was.
    shell: Option<String>,
}

/// How a stream of events ended.
pub enum Last {
    /// With the exec.
    Ended(Exit),
    /// The exec goes on; nobody wanted to wait for it.
    Running,
}

/// Passes output on until the one event that comes last.
pub async fn follow(client: &Client, response: Response) -> Result<Last, Failure> {
    follow_begun(client, response, |_| {}).await
}

/// The same, for who needs the id of an exec that begins.
pub async fn follow_begun(
    client: &Client,
    response: Response,
    mut begun: impl FnMut(String),
) -> Result<Last, Failure> {
    let mut lines = Lines::of(client, response);
    loop {
        let event: Event = lines.next().await?;
        match event.r#type.as_str() {
            "started" => event.exec_id.into_iter().for_each(&mut begun),
            "stdout" => print::stdout(&event.bytes(client)?)?,
            "stderr" => print::stderr(&event.bytes(client)?)?,
            "gap" => print::note(&event.gap()),
            "running" => return Ok(Last::Running),
            "detached" => {
                let reason = event.reason.unwrap_or_default();
                return Err(Failure::Detached { reason });
            }
            outcome => return Ok(Last::Ended(event.ended(outcome))),
        }
    }
}

impl Event {
    fn bytes(self, client: &Client) -> Result<Vec<u8>, Failure> {
        match (self.data, self.data_b64) {
            (Some(text), _) => Ok(text.into_bytes()),
            (None, Some(text)) => {
                STANDARD.decode(text).map_err(|e| client.not_sandkeep(e.to_string()))
            }
            (None, None) => Ok(Vec::new()),
        }
    }

    fn gap(&self) -> String {
        let stream = self.stream.as_deref().unwrap_or("the output");
        let missing = self.to.unwrap_or_default().saturating_sub(self.from.unwrap_or_default());
        format!("{missing} bytes of {stream} are not kept and missing here")
    }

    /// Tells what the exit code alone would not.
    pub fn ended(&self, outcome: &str) -> Exit {
        let outcome = match (outcome, self.exit_code, self.signal) {
            ("exited", Some(code), _) => Outcome::Exited(code),
            ("signaled", _, Some(signal)) => Outcome::Signaled(signal),
            ("timed_out", ..) => Outcome::TimedOut,
            ("oom_killed", ..) => Outcome::OomKilled,
            ("canceled", ..) => Outcome::Canceled,
            _ => Outcome::Lost,
        };
        print::ending(&outcome, self.error.as_deref());
        match self.shell.as_deref() {
            Some("replaced") => print::note("the shell had to be replaced: it is as it was opened"),
            Some("ended") => print::note("the shell has ended with it"),
            Some(_) | None => {}
        }
        Exit::of_outcome(&outcome)
    }
}
