//! Persistent shells: open, get, close, and run commands in one. A command of a shell is an exec: `known_execs` has the
//! operations on it.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::execs::{self, Begun, ExecQuery, Mode, Then};
use super::openapi::{Guarded, Inside, Journaled, OfSandbox, WithBody};
use super::terminal::WhenGone;
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::path::{Id, In};
use crate::kit::query::{QueryResult, query};
use crate::kit::who::Who;
use sandkeep_broker::{Broker, ShellDraft, ShellExecDraft, ShellView};
use sandkeep_core::{SandboxId, ShellId, api::ExecAnswer};
use sandkeep_guestlink::ShellProgram;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OpenShell)]
pub struct ShellBody {
    /// `bash` if it is installed, otherwise `sh`.
    shell: Option<ShellProgram>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    user: Option<String>,
}

/// Open a shell that keeps directory, variables, functions and options between commands
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/shells", operation_id = "open_shell", tag = "shells",
    params(("id" = SandboxId, Path)),
    request_body = Option<ShellBody>,
    responses(
        (status = 201, body = ShellView, headers(("Location" = String, description = "path of the new resource"))),
        Guarded, WithBody, OfSandbox, Inside
    )
)]
pub async fn open(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<ShellView>), Refusal> {
    let body: ShellBody = body::optional(&headers, body).await?;
    let draft = ShellDraft {
        program: body.shell,
        env: body.env.unwrap_or_default(),
        cwd: body.cwd,
        user: body.user,
    };
    let shell = broker.open_shell(&who, &id, draft).await?;
    let location = format!("/api/v1/sandboxes/{id}/shells/{}", shell.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(shell)))
}

#[derive(Serialize, ToSchema)]
#[schema(as = Shells)]
pub struct Listing {
    items: Vec<ShellView>,
}

/// List the shells of a sandbox, oldest first
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/shells", operation_id = "list_shells", tag = "shells",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = Listing), Guarded, OfSandbox, Inside)
)]
pub async fn list(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<Listing>, Refusal> {
    Ok(Json(Listing { items: broker.shells(&who, &id).await? }))
}

/// Get a shell
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/shells/{shell_id}", operation_id = "get_shell", tag = "shells",
    params(("id" = SandboxId, Path), ("shell_id" = ShellId, Path)),
    responses((status = 200, body = ShellView), Guarded, OfSandbox, Inside)
)]
pub async fn get(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, shell): In<ShellId>,
) -> Result<Json<ShellView>, Refusal> {
    Ok(Json(broker.shell(&who, &sandbox, &shell).await?))
}

/// Close a shell and kill everything that runs in it
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/shells/{shell_id}", operation_id = "close_shell", tag = "shells",
    params(("id" = SandboxId, Path), ("shell_id" = ShellId, Path)),
    responses((status = 204), Guarded, OfSandbox, Inside)
)]
pub async fn close(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, shell): In<ShellId>,
) -> Result<StatusCode, Refusal> {
    broker.close_shell(&who, &sandbox, &shell).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateShellExec)]
pub struct ShellExecBody {
    command: String,
    stdin: Option<String>,
    stdin_b64: Option<String>,
    /// Keep stdin open after the given input: send more with `POST …/stdin`, and close it there.
    #[serde(default)]
    stdin_open: bool,
    /// Counts from the start of the command, which is then interrupted; `shell` in the answer says whether the shell
    /// survived.
    timeout_ms: Option<u64>,
    /// What happens to the command if the client disconnects first.
    #[serde(default)]
    on_disconnect: WhenGone,
    /// Live only: the command waits for this client, which then gets all output.
    #[serde(default)]
    backpressure: bool,
}

/// Run a command in a shell, after any earlier ones; answers like every exec
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/shells/{shell_id}/execs", operation_id = "create_shell_exec",
    tag = "shells",
    params(("id" = SandboxId, Path), ("shell_id" = ShellId, Path), ExecQuery),
    request_body = ShellExecBody,
    responses(
        (status = 200, body = ExecAnswer),
        (status = 202, body = Begun, headers(("Location" = String, description = "path of the new resource"))),
        Guarded, WithBody, OfSandbox, Inside, Journaled
    )
)]
pub async fn exec(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, shell): In<ShellId>,
    asked: QueryResult<ExecQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let mode = Mode::of(&query(asked)?, &headers)?;
    let body: ShellExecBody = body::required(&headers, body).await?;
    mode.check(body.on_disconnect)?;
    let pace = mode.pace(body.backpressure)?;
    let stdin = execs::given_stdin(body.stdin, body.stdin_b64)?;
    let draft = ShellExecDraft {
        command: body.command,
        stdin: execs::source(stdin.as_ref(), body.stdin_open),
        timeout: execs::given_timeout(body.timeout_ms)?,
        on_disconnect: body.on_disconnect.into(),
    };
    let then = Then::of(draft.stdin);
    let running = broker.exec_in_shell(&who, &sandbox, &shell, draft).await?;
    if let Some(bytes) = stdin {
        tokio::spawn(execs::feed(running.input.clone(), bytes, then));
    }
    execs::respond(&sandbox, running, mode, pace).await
}
