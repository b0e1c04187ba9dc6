//! Execs: one command run to its end, answered when it is over, or live (see `exec_stream`).

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::openapi::{Guarded, Inside, OfSandbox, WithBody};
use super::output::{Encoded, Kept, Shown};
use super::problem::Refusal;
use super::sandboxes::Id;
use super::who::Who;
use super::{body, exec_stream};
use crate::broker::{Broker, ExecDraft, Running};
use crate::error::Error;
use crate::guest::{ExecEnd, ExecEvent, ExecutionInput, Outcome, OutputStream, Stdin};
use crate::sandbox::{ExecId, SandboxId};

pub const NDJSON: &str = "application/x-ndjson";

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateExec)]
pub struct ExecBody {
    command: Option<String>,
    argv: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    user: Option<String>,
    stdin: Option<String>,
    stdin_b64: Option<String>,
    timeout_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ExecQuery {
    #[serde(default)]
    stream: bool,
}

/// Run a command: answered when it is over, or live with `stream`
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/execs", operation_id = "create_exec", tag = "execs",
    params(("id" = SandboxId, Path), ExecQuery),
    request_body = ExecBody,
    responses((status = 200, body = Answer), Guarded, WithBody, OfSandbox, Inside)
)]
pub async fn create(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    query: Result<Query<ExecQuery>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let Query(query) = query.map_err(|e| Refusal::QueryMalformed { problem: e.body_text() })?;
    let body: ExecBody = body::required(&headers, body).await?;
    let (draft, stdin) = body.into_draft()?;
    let running = broker.exec(&who, &id, draft).await?;
    if let Some(bytes) = stdin {
        tokio::spawn(feed(running.input.clone(), bytes));
    }
    match query.stream || accepts_ndjson(&headers) {
        true => Ok(exec_stream::answer(running)),
        false => Ok(Json(Answer::collect(running).await).into_response()),
    }
}

fn accepts_ndjson(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|range| range.split(';').next().is_some_and(|r| r.trim().eq_ignore_ascii_case(NDJSON)))
}

impl ExecBody {
    /// The command for the broker, and what to feed it.
    fn into_draft(self) -> Result<(ExecDraft, Option<Bytes>), Error> {
        let argv = match (self.command, self.argv) {
            (Some(command), None) => vec!["/bin/sh".to_owned(), "-c".to_owned(), command],
            (None, Some(argv)) => argv,
            (None, None) => return Err(invalid("command", "give either command or argv")),
            (Some(_), Some(_)) => {
                return Err(invalid("argv", "give either command or argv, not both"));
            }
        };
        let stdin = match (self.stdin, self.stdin_b64) {
            (None, None) => None,
            (Some(text), None) => Some(Bytes::from(text)),
            (None, Some(text)) => {
                let decoded =
                    STANDARD.decode(text).map_err(|e| invalid("stdin_b64", &e.to_string()))?;
                Some(Bytes::from(decoded))
            }
            (Some(_), Some(_)) => {
                return Err(invalid("stdin_b64", "give either stdin or stdin_b64, not both"));
            }
        };
        if self.timeout_ms == Some(0) {
            return Err(invalid("timeout_ms", "must be at least 1; leave it out for none"));
        }
        let draft = ExecDraft {
            argv,
            env: self.env.unwrap_or_default(),
            cwd: self.cwd,
            user: self.user,
            stdin: stdin.as_ref().map(|_| Stdin::Piped),
            timeout: self.timeout_ms.map(Duration::from_millis),
        };
        Ok((draft, stdin))
    }
}

fn invalid(field: &'static str, problem: &str) -> Error {
    Error::InvalidField { field, problem: problem.to_owned() }
}

/// Writes all of stdin and closes it, beside the reading of output: a command that does not read
/// must not keep its output from flowing. It is a task of its own, so that a client who leaves does
/// not cut the input short.
async fn feed(input: ExecutionInput, bytes: Bytes) {
    // A command may end, or close its stdin, without reading all of it; that is its own affair.
    if input.write(&bytes).await.is_ok() {
        let _ = input.close().await;
    }
}

/// How an exec ended, in the words of the API; both forms of the answer carry it.
#[derive(Debug, Serialize, ToSchema)]
pub struct Ending {
    /// `null` unless the command exited.
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub truncated: bool,
    pub duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Ending {
    pub fn new(end: ExecEnd, truncated: bool) -> Self {
        let (exit_code, signal) = match end.outcome {
            Outcome::Exited(code) => (Some(code), None),
            Outcome::Signaled(signal) => (None, Some(signal)),
            Outcome::TimedOut | Outcome::Canceled | Outcome::OomKilled | Outcome::Lost => {
                (None, None)
            }
        };
        let duration_ms = u64::try_from(end.duration.as_millis()).unwrap_or(u64::MAX);
        Self { exit_code, signal, truncated, duration_ms, error: end.error }
    }
}

pub fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Exited(_) => "exited",
        Outcome::Signaled(_) => "signaled",
        Outcome::TimedOut => "timed_out",
        Outcome::Canceled => "canceled",
        Outcome::OomKilled => "oom_killed",
        Outcome::Lost => "lost",
    }
}

/// The end of an exec whose events stopped without one: the sandbox or the daemon went away.
pub fn lost() -> ExecEnd {
    ExecEnd {
        outcome: Outcome::Lost,
        error: Some("the exec's events stopped before its end was known".to_owned()),
        duration: Duration::ZERO,
    }
}

/// The answer to a blocking exec.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ExecAnswer)]
struct Answer {
    exec_id: ExecId,
    outcome: &'static str,
    #[serde(flatten)]
    ending: Ending,
    #[serde(flatten)]
    stdout: StdoutFields,
    #[serde(flatten)]
    stderr: StderrFields,
}

macro_rules! stream_fields {
    ($name:ident, $text:ident, $b64:ident, $omitted:ident, $at:ident) => {
        #[derive(Debug, Serialize, ToSchema)]
        struct $name {
            #[serde(skip_serializing_if = "Option::is_none")]
            $text: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            $b64: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            $omitted: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            $at: Option<u64>,
        }

        impl From<Shown> for $name {
            fn from(shown: Shown) -> Self {
                let ($text, $b64) = match shown.data {
                    Encoded::Text(text) => (Some(text), None),
                    Encoded::Base64(text) => (None, Some(text)),
                };
                let ($omitted, $at) = shown.omitted.map(|o| (o.bytes, o.at)).unzip();
                Self { $text, $b64, $omitted, $at }
            }
        }
    };
}

stream_fields!(StdoutFields, stdout, stdout_b64, stdout_omitted_bytes, stdout_omitted_at);
stream_fields!(StderrFields, stderr, stderr_b64, stderr_omitted_bytes, stderr_omitted_at);

impl Answer {
    /// Reads the exec to its end. If the client leaves, this future is dropped and with it `running`;
    /// the command goes on and the broker drains it.
    async fn collect(mut running: Running) -> Self {
        let (mut stdout, mut stderr) = (Kept::default(), Kept::default());
        let end = loop {
            match running.next().await {
                Some(ExecEvent::Started) => {}
                Some(ExecEvent::Output { stream: OutputStream::Stdout, data, .. }) => {
                    stdout.push(&data)
                }
                Some(ExecEvent::Output { stream: OutputStream::Stderr, data, .. }) => {
                    stderr.push(&data)
                }
                Some(ExecEvent::Ended(end)) => break end,
                None => break lost(),
            }
        };
        let (stdout, stderr) = (stdout.show(), stderr.show());
        let truncated = stdout.omitted.is_some() || stderr.omitted.is_some();
        Self {
            exec_id: running.id.clone(),
            outcome: outcome_name(&end.outcome),
            ending: Ending::new(end, truncated),
            stdout: stdout.into(),
            stderr: stderr.into(),
        }
    }
}
