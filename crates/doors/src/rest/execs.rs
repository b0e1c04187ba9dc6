//! A new exec: one command, answered when it has ended, live (see `exec_stream`), or at once with its id. `known_execs`
//! has the operations on existing execs.

use std::collections::BTreeMap;
use std::future::ready;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::exec_stream::{self, Opening};
use super::openapi::{Guarded, Inside, Journaled, OfSandbox, WithBody};
use super::terminal::{Size, WhenGone};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::frames::Form;
use crate::kit::long_answer::long_answer;
use crate::kit::path::Id;
use crate::kit::query::{QueryResult, query};
use crate::kit::who::Who;
use sandkeep_broker::{Broker, ExecDraft, ExecLimits, Running, error::Error};
use sandkeep_core::{
    ExecId, SandboxId,
    api::{Ending, ExecAnswer, StderrFields, StdoutFields},
    excerpt::{Cut, Excerpt},
    ledger::Reservation,
    limits::{ANSWER_TAIL_BYTES, OUTPUT_HEAD_MAX_BYTES, OUTPUT_TAIL_MAX_BYTES},
};
use sandkeep_guestlink::{
    ExecEnd, ExecutionInput, Offsets, Outcome, OutputStream,
    journal::{Follow, Keep, StdinSource},
};

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateExec)]
pub struct ExecBody {
    /// Run by `sh -c`; either this or `argv`. Without both, the command of the sandbox's image is run.
    #[schema(example = "echo hello")]
    command: Option<String>,
    /// The program and its arguments, without a shell.
    argv: Option<Vec<String>>,
    /// Added to the sandbox's own environment. Values are never shown again.
    env: Option<BTreeMap<String, String>>,
    /// The directory inside, absolute or relative to the working directory. Default: the working directory, which is the
    /// workspace, else what the image says, else the user's home.
    cwd: Option<String>,
    /// A name or uid, optionally followed by a colon and a group or gid, as defined in the sandbox's `/etc/passwd` and
    /// `/etc/group`. Default: the image's user, or `user` if there is no image.
    user: Option<String>,
    /// Stdin of the command, as text.
    stdin: Option<String>,
    /// Stdin of the command, as base64-encoded bytes.
    stdin_b64: Option<String>,
    /// Keep stdin open after the given input: send more with `POST …/stdin`, and close it there.
    #[serde(default)]
    stdin_open: bool,
    /// Kill the command's whole process tree after this many milliseconds; never if left out.
    #[schema(minimum = 1)]
    timeout_ms: Option<u64>,
    /// Limits of the command's process tree, within the sandbox's limits.
    #[serde(default)]
    resources: Option<ExecLimits>,
    /// A terminal of this size instead of pipes: all output is stdout. Attach with `GET …/attach`.
    terminal: Option<Size>,
    /// What happens to the command if the client disconnects first.
    #[serde(default)]
    on_disconnect: WhenGone,
    /// Live only: the command waits for this client, which then gets all output, however long. Otherwise a client that
    /// is too slow gets a `gap`.
    #[serde(default)]
    backpressure: bool,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ExecQuery {
    /// Answer live: NDJSON, or Server-Sent Events if the request accepts those.
    #[serde(default)]
    stream: bool,
    /// `false`: answer at once with the exec's id.
    #[serde(default = "yes")]
    wait: bool,
}

fn yes() -> bool {
    true
}

/// How a request for an exec is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Blocking,
    Live(Form),
    Detached,
}

impl Mode {
    pub(super) fn of(query: &ExecQuery, headers: &HeaderMap) -> Result<Self, Refusal> {
        match (query.wait, Form::live(query.stream, headers)) {
            (true, Some(form)) => Ok(Self::Live(form)),
            (true, None) => Ok(Self::Blocking),
            (false, _) if query.stream => {
                let problem = "wait=false and stream=true exclude each other".to_owned();
                Err(Refusal::QueryMalformed { problem })
            }
            (false, _) => Ok(Self::Detached),
        }
    }

    /// Whether output waits for the client.
    pub(super) fn pace(self, backpressure: bool) -> Result<Pace, Error> {
        match (self, backpressure) {
            (_, false) => Ok(Pace::Journals),
            (Self::Live(_), true) => Ok(Pace::Clients),
            (Self::Blocking | Self::Detached, true) => {
                Err(invalid("backpressure", "it is for live answers: add stream=true"))
            }
        }
    }

    /// Whether this mode can do what was requested for a disconnect.
    pub(super) fn check(self, when_gone: WhenGone) -> Result<(), Error> {
        match (self, when_gone) {
            (Self::Detached, WhenGone::Kill | WhenGone::CloseStdin) => {
                Err(invalid("on_disconnect", "there is no connection to hold with wait=false"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the output of a live exec waits for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Journals,
    /// A slow client slows the command down.
    Clients,
}

/// The answer to an exec that is not waited for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ExecStarted)]
pub(super) struct Begun {
    id: ExecId,
    /// The same as `id`, under its former name.
    #[schema(deprecated, value_type = String)]
    exec_id: ExecId,
}

/// Run a command: answers when it ends, live with `stream`, or at once with `wait=false`
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/execs", operation_id = "create_exec", tag = "execs",
    params(("id" = SandboxId, Path), ExecQuery),
    request_body = ExecBody,
    responses(
        (status = 200, description = "the exec has ended or, live, its events", content(
            (ExecAnswer = "application/json"),
            (String = "application/x-ndjson"),
            (String = "text/event-stream"),
        )),
        (status = 202, description = "the exec has started", body = Begun, headers(("Location" = String, description = "path of the new resource"))),
        Guarded, WithBody, OfSandbox, Inside, Journaled
    )
)]
pub async fn create(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    asked: QueryResult<ExecQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let mode = Mode::of(&query(asked)?, &headers)?;
    let body: ExecBody = body::required(&headers, body).await?;
    mode.check(body.on_disconnect)?;
    let pace = mode.pace(body.backpressure)?;
    let (draft, stdin) = body.into_draft()?;
    let then = Then::of(draft.stdin);
    let running = broker.exec(&who, &id, draft).await?;
    if let Some(bytes) = stdin {
        tokio::spawn(feed(running.input.clone(), bytes, then));
    }
    respond(&id, running, mode, pace).await
}

/// Answers for an exec that has started.
pub(super) async fn respond(
    id: &SandboxId,
    running: Running,
    mode: Mode,
    pace: Pace,
) -> Result<Response, Refusal> {
    match mode {
        Mode::Blocking => {
            let exec_id = running.id.clone();
            let collected = Collected::of(running).await;
            let truncated = collected.is_truncated();
            let Collected { end, stdout: said, stderr: complained, space } = collected;
            let answer = ExecAnswer {
                id: exec_id.clone(),
                exec_id,
                status: end.outcome.status(),
                outcome: end.outcome.status(),
                ending: ending(&end, truncated),
                stdout: stdout(said),
                stderr: stderr(complained),
            };
            Ok(told(answer, space))
        }
        Mode::Live(form) => {
            let watch = match pace {
                Pace::Journals => running.follow(),
                Pace::Clients => running.attend(),
            };
            Ok(exec_stream::answer(watch, form, Follow::ToTheEnd, Opening::Announce))
        }
        Mode::Detached => {
            let exec_id = running.id.clone();
            let location = format!("/api/v1/sandboxes/{id}/execs/{exec_id}");
            Ok((
                StatusCode::ACCEPTED,
                [(LOCATION, location)],
                Json(Begun { id: exec_id.clone(), exec_id }),
            )
                .into_response())
        }
    }
}

/// The answer with its texts, which are as long as the output.
fn told(mut answer: ExecAnswer, space: Reservation) -> Response {
    let texts = fields(&mut answer).map(|(name, text)| text.take().map(|text| (name, text)));
    let texts = texts.into_iter().flatten().collect();
    let whole = |answer: &mut ExecAnswer, texts: Vec<(&str, String)>| {
        for (name, text) in texts {
            let place = fields(answer).into_iter().find(|(field, _)| *field == name);
            *place.expect("it was taken from there").1 = Some(text);
        }
    };
    long_answer(answer, texts, whole, space)
}

/// The fields of an answer that hold output.
fn fields(answer: &mut ExecAnswer) -> [(&'static str, &mut Option<String>); 4] {
    let ExecAnswer { stdout, stderr, .. } = answer;
    [
        ("stdout", &mut stdout.stdout),
        ("stdout_b64", &mut stdout.stdout_b64),
        ("stderr", &mut stderr.stderr),
        ("stderr_b64", &mut stderr.stderr_b64),
    ]
}

/// What to run: an argument list, a shell command line, or nothing, which means the command of the sandbox's image.
pub fn argv_of(command: Option<String>, argv: Option<Vec<String>>) -> Result<Vec<String>, Error> {
    match (command, argv) {
        (Some(command), None) => Ok(vec!["/bin/sh".to_owned(), "-c".to_owned(), command]),
        (None, Some(argv)) => Ok(argv),
        (None, None) => Ok(Vec::new()),
        (Some(_), Some(_)) => Err(invalid("argv", "give either command or argv, not both")),
    }
}

impl ExecBody {
    /// The command for the broker, and its initial stdin.
    fn into_draft(self) -> Result<(ExecDraft, Option<Bytes>), Error> {
        let argv = argv_of(self.command, self.argv)?;
        let stdin = given_stdin(self.stdin, self.stdin_b64)?;
        let timeout = given_timeout(self.timeout_ms)?;
        let draft = ExecDraft {
            argv,
            env: self.env.unwrap_or_default(),
            cwd: self.cwd,
            user: self.user,
            stdin: source(stdin.as_ref(), self.stdin_open),
            timeout,
            limits: self.resources.unwrap_or_default(),
            terminal: self.terminal.map(Into::into),
            on_disconnect: self.on_disconnect.into(),
            keep: Keep::AmongTheLast,
        };
        Ok((draft, stdin))
    }
}

/// The stdin of a request, as text or base64.
pub(super) fn given_stdin(
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<Bytes>, Error> {
    match (text, base64) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(Bytes::from(text))),
        (None, Some(text)) => {
            let decoded =
                STANDARD.decode(text).map_err(|e| invalid("stdin_b64", &e.to_string()))?;
            Ok(Some(Bytes::from(decoded)))
        }
        (Some(_), Some(_)) => Err(invalid("stdin_b64", "give either stdin or stdin_b64, not both")),
    }
}

pub(super) fn given_timeout(timeout_ms: Option<u64>) -> Result<Option<Duration>, Error> {
    match timeout_ms {
        Some(0) => Err(invalid("timeout_ms", "must be at least 1; leave it out for none")),
        timeout_ms => Ok(timeout_ms.map(Duration::from_millis)),
    }
}

pub(super) fn source(given: Option<&Bytes>, open: bool) -> StdinSource {
    match (given, open) {
        (_, true) => StdinSource::Open,
        (Some(_), false) => StdinSource::Given,
        (None, false) => StdinSource::None,
    }
}

fn invalid(field: &'static str, problem: &str) -> Error {
    Error::InvalidField { field, problem: problem.to_owned() }
}

/// What happens after the request's stdin was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Close,
    More,
}

impl Then {
    pub(super) fn of(stdin: StdinSource) -> Self {
        match stdin {
            StdinSource::Open => Self::More,
            StdinSource::None | StdinSource::Given => Self::Close,
        }
    }
}

/// Writes all of stdin, concurrently with reading the output: a command that does not read its stdin must not block its
/// output. It runs in a separate task, so that a client that disconnects does not truncate the input.
pub async fn feed(input: ExecutionInput, bytes: Bytes, then: Then) {
    // A command may end, or close its stdin, without reading everything; that is not an error.
    if input.write(&bytes).await.is_ok() && then == Then::Close {
        let _ = input.close().await;
    }
}

pub(super) fn ending(end: &ExecEnd, truncated: bool) -> Ending {
    let ExecEnd { outcome, error, duration, shell, .. } = end;
    let (exit_code, signal) = match *outcome {
        Outcome::Exited(code) => (Some(code), None),
        Outcome::Signaled(signal) => (None, Some(signal)),
        Outcome::TimedOut | Outcome::Canceled | Outcome::OomKilled | Outcome::Lost => (None, None),
    };
    let skipped = shell.map_or_else(Offsets::default, |shell| shell.skipped);
    Ending {
        exit_code,
        signal,
        truncated,
        duration_ms: sandkeep_core::millis(*duration),
        error: error.clone(),
        shell: shell.map(|shell| shell.fate),
        stdout_skipped_bytes: skipped.stdout,
        stderr_skipped_bytes: skipped.stderr,
    }
}

macro_rules! stream_fields {
    ($name:ident, $fields:ident, $text:ident, $b64:ident, $omitted:ident, $at:ident) => {
        fn $name(cut: Cut) -> $fields {
            let ($text, $b64) = match String::from_utf8(cut.bytes) {
                Ok(text) => (Some(text), None),
                Err(not_text) => (None, Some(STANDARD.encode(not_text.as_bytes()))),
            };
            let ($omitted, $at) = cut.omitted.map(|o| (o.bytes, o.at)).unzip();
            $fields { $text, $b64, $omitted, $at }
        }
    };
}

stream_fields!(stdout, StdoutFields, stdout, stdout_b64, stdout_omitted_bytes, stdout_omitted_at);
stream_fields!(stderr, StderrFields, stderr, stderr_b64, stderr_omitted_bytes, stderr_omitted_at);

/// The output of a blocking exec, within limits, and how it ended.
pub struct Collected {
    pub end: ExecEnd,
    pub stdout: Cut,
    pub stderr: Cut,
    /// The memory reserved for it from the sandbox owner's quota.
    pub space: Reservation,
}

impl Collected {
    /// Reads the exec to its end. If the client disconnects, this future and `running` are dropped; the command
    /// continues, and so does its journal.
    pub async fn of(running: Running) -> Self {
        let excerpt = || Excerpt::within(OUTPUT_HEAD_MAX_BYTES, OUTPUT_TAIL_MAX_BYTES);
        let (mut stdout, mut stderr) = (excerpt(), excerpt());
        let space = running.answer_space();
        let take = |stream, _, data: Bytes| {
            let excerpt = match stream {
                OutputStream::Stdout => &mut stdout,
                OutputStream::Stderr => &mut stderr,
            };
            // The rest is in the journal.
            if space.take(excerpt.growth(data.len()) as u64).is_err() {
                excerpt.close(ANSWER_TAIL_BYTES);
            }
            excerpt.push(&data);
            ready(())
        };
        let end = running.collect(take).await;
        Self { end, stdout: stdout.cut(), stderr: stderr.cut(), space }
    }

    /// Whether output was omitted.
    pub fn is_truncated(&self) -> bool {
        self.stdout.omitted.is_some() || self.stderr.omitted.is_some()
    }
}
