//! Tasks: a command in a session, answered when it has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::sessions;
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::long_answer::long_answer;
use crate::kit::path::Id;
use crate::kit::who::Who;
use crate::rest::execs::Collected;
use crate::rest::openapi::{Guarded, Inside, Journaled, OfSandbox, WithBody};
use sandkeep_broker::{Broker, ExecDraft, error::Error};
use sandkeep_core::{SandboxId, excerpt::Cut, ledger::Reservation};
use sandkeep_guestlink::Outcome;

/// The exit code of `timeout(1)` after a timeout.
const TIMED_OUT: i32 = 124;
/// Shells add this to the number of the signal that ended a command.
const SIGNALED: i32 = 128;
const SIGKILL: i32 = 9;

/// A command to run.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Run by `sh -c`.
    #[schema(example = "echo hello")]
    command: String,
    /// Added to the session's own environment.
    env: Option<BTreeMap<String, String>>,
    /// Seconds until the command's whole process tree is killed; no limit if left out.
    #[schema(minimum = 0.001, example = 30.0)]
    timeout: Option<f64>,
    /// An absolute path inside; the user's home if left out.
    #[schema(example = "/tmp")]
    workdir: Option<String>,
}

/// How a command ended.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskResult {
    /// The command's own exit code; by shell convention, 124 after a timeout, and 128 plus the signal number if a
    /// signal ended it.
    exit_code: i32,
    /// Bytes that are not UTF-8 are replaced.
    #[schema(value_type = String, required = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout: Option<String>,
    #[schema(value_type = String, required = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<String>,
    /// Only if the command did not exit by itself: `timed_out`, `signaled`, `canceled`, `oom_killed`, `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    /// Why the command could not be started, or ended as it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Only if there was more output than is kept: the beginning and the end are kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

impl Task {
    fn into_draft(self) -> Result<ExecDraft, Error> {
        let timeout = self.timeout.map(seconds).transpose()?;
        Ok(ExecDraft {
            argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), self.command],
            env: self.env.unwrap_or_default(),
            cwd: self.workdir,
            timeout,
            ..ExecDraft::default()
        })
    }
}

fn seconds(seconds: f64) -> Result<Duration, Error> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if timeout.as_millis() > 0 => Ok(timeout),
        Ok(_) | Err(_) => {
            let problem = format!("{seconds} is not a time; leave it out for none");
            Err(Error::InvalidField { field: "timeout", problem })
        }
    }
}

impl TaskResult {
    /// The result of a task, and the memory reserved for it from the owner's quota.
    fn of(collected: Collected) -> (Self, Reservation) {
        let truncated = collected.is_truncated();
        let Collected { end, stdout, stderr, space } = collected;
        let name = Some(end.outcome.name());
        let (exit_code, outcome) = match end.outcome {
            Outcome::Exited(code) => (code, None),
            Outcome::Signaled(signal) => (SIGNALED + signal, name),
            Outcome::TimedOut => (TIMED_OUT, name),
            Outcome::Canceled | Outcome::OomKilled | Outcome::Lost => (SIGNALED + SIGKILL, name),
        };
        let text = |cut: Cut| String::from_utf8_lossy(&cut.bytes).into_owned();
        let (stdout, stderr) = (text(stdout), text(stderr));
        let (stdout, stderr) = (Some(stdout), Some(stderr));
        (Self { exit_code, stdout, stderr, outcome, error: end.error, truncated }, space)
    }
}

/// Run a command in a session
///
/// After the timeout the whole process tree is killed, and the answer is 200 with `exitCode` 124, `outcome` `timed_out`
/// and the output so far. More concurrent tasks than the runtime's `maxConcurrentTasks` are refused with 429.
#[utoipa::path(
    post, path = "/api/v1/sessions/{id}/tasks", operation_id = "run_task", tag = "urule",
    params(("id" = SandboxId, Path, description = "the sessionId")),
    request_body = Task,
    responses(
        (status = 200, description = "the task has ended", body = TaskResult),
        Guarded, WithBody, OfSandbox, Inside, Journaled
    )
)]
pub async fn run(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let task: Task = body::required(&headers, body).await?;
    let draft = task.into_draft()?;
    let session = sessions::find(&broker, &who, id).await?;
    let running = broker.exec(&who, &session.id, draft).await?;
    let (mut result, space) = TaskResult::of(Collected::of(running).await);
    let texts = [("stdout", result.stdout.take()), ("stderr", result.stderr.take())];
    let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
    let whole = |result: &mut TaskResult, texts: Vec<(&str, String)>| {
        let mut texts = texts.into_iter().map(|(_, text)| text);
        (result.stdout, result.stderr) = (texts.next(), texts.next());
    };
    Ok(long_answer(result, texts, whole, space))
}
