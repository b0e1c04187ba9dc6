//! Existing execs: list, get, read or follow their output, write to stdin, signal, cancel.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::exec_stream::{self, Opening};
use super::openapi::{Guarded, Inside, OfSandbox, WithBody, WithQuery};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::frames::Form;
use crate::kit::path::{Id, In};
use crate::kit::query::{QueryResult, query};
use crate::kit::who::Who;
use sandkeep_broker::{Broker, ExecView, ExecWatch, error::Error};
use sandkeep_core::api::{Order, ReadOutput};
use sandkeep_core::{
    ExecId, SandboxId, Signal,
    limits::{BODY_READ, PAGE_DEFAULT, PAGE_MAX},
};
use sandkeep_guestlink::{
    Offsets, OutputStream,
    journal::{Follow, From},
};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Maximum number of items; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// `next_cursor` of the page before; `sort` must be the same.
    #[param(value_type = Option<String>)]
    cursor: Option<ExecId>,
    /// `created_at` for oldest first, the default; `-created_at` for newest first.
    #[serde(default)]
    #[param(required = false, inline)]
    sort: Order,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Execs)]
pub struct Listing {
    items: Vec<ExecView>,
    /// Pass it as `cursor` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<ExecId>,
}

/// List the running and recent execs
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs", operation_id = "list_execs", tag = "execs",
    params(("id" = SandboxId, Path), PageQuery),
    responses((status = 200, body = Listing), Guarded, WithQuery, OfSandbox)
)]
pub async fn list(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    asked: QueryResult<PageQuery>,
) -> Result<Json<Listing>, Refusal> {
    let PageQuery { limit, cursor, sort } = query(asked)?;
    let limit = limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        let problem = format!("limit: must be from 1 to {PAGE_MAX}");
        return Err(Refusal::QueryMalformed { problem });
    }
    let page = broker.execs(&who, &id, (sort, cursor), limit).await?;
    Ok(Json(Listing { items: page.items, next_cursor: page.next }))
}

/// Get an exec
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs/{exec_id}", operation_id = "get_exec", tag = "execs",
    params(("id" = SandboxId, Path), ("exec_id" = ExecId, Path)),
    responses((status = 200, body = ExecView), Guarded, OfSandbox)
)]
pub async fn get(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, exec): In<ExecId>,
) -> Result<Json<ExecView>, Refusal> {
    Ok(Json(broker.exec_view(&who, &sandbox, &exec).await?))
}

/// Cancel an exec: kills its whole process tree; no effect if it has ended
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/execs/{exec_id}", operation_id = "cancel_exec", tag = "execs",
    params(("id" = SandboxId, Path), ("exec_id" = ExecId, Path)),
    responses((status = 204), Guarded, OfSandbox, Inside)
)]
pub async fn cancel(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, exec): In<ExecId>,
) -> Result<StatusCode, Refusal> {
    broker.cancel_exec(&who, &sandbox, &exec).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SignalExec)]
pub struct SignalBody {
    /// `SIGTERM`, `TERM` or 15.
    #[schema(value_type = String, pattern = "^(SIG)?[A-Z]+[0-9]?$|^[1-9][0-9]?$", example = "SIGTERM")]
    signal: Signal,
}

/// Send a signal to the first process of an exec
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/execs/{exec_id}/signal", operation_id = "signal_exec", tag = "execs",
    params(("id" = SandboxId, Path), ("exec_id" = ExecId, Path)),
    request_body = SignalBody,
    responses((status = 204), Guarded, WithBody, OfSandbox, Inside)
)]
pub async fn signal(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, exec): In<ExecId>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let SignalBody { signal } = body::required(&headers, body).await?;
    broker.signal_exec(&who, &sandbox, &exec, signal.number()).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StdinQuery {
    /// Close stdin after these bytes.
    #[serde(default)]
    close: bool,
}

/// Send bytes to the stdin of an exec that was started with `stdin_open`
///
/// The body is passed on as fast as the command reads it. Concurrent requests are not interleaved: the later one waits.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/execs/{exec_id}/stdin", operation_id = "write_exec_stdin", tag = "execs",
    params(("id" = SandboxId, Path), ("exec_id" = ExecId, Path), StdinQuery),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses((status = 204), Guarded, WithBody, OfSandbox, Inside)
)]
pub async fn stdin(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, exec): In<ExecId>,
    asked: QueryResult<StdinQuery>,
    mut body: Body,
) -> Result<StatusCode, Refusal> {
    let StdinQuery { close } = query(asked)?;
    let turn = broker.exec_stdin(&who, &sandbox, &exec).await?;
    // The time limit applies to receiving each piece; the command may take as long as it likes to read it.
    while let Some(frame) =
        tokio::time::timeout(BODY_READ, body.frame()).await.map_err(|_| Refusal::BodyTooSlow)?
    {
        let frame = frame.map_err(|e| Refusal::BodyBroken { problem: e.to_string() })?;
        if let Ok(bytes) = frame.into_data() {
            turn.write(&bytes).await?;
        }
    }
    if close {
        turn.close().await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The offset at which a watch starts.
pub fn beginning(
    asked: &ReadOutput,
    form: Form,
    resumed: Option<Offsets>,
) -> Result<From, Refusal> {
    let malformed = |problem: &str| Refusal::QueryMalformed { problem: problem.to_owned() };
    match (asked.stream, asked.offset, asked.stdout_offset.or(asked.stderr_offset)) {
        (Some(_), _, Some(_)) => {
            Err(malformed("stdout_offset and stderr_offset are for both streams; use offset"))
        }
        (Some(stream), offset, None) => {
            let resumed = resumed.map(|offsets| match stream {
                OutputStream::Stdout => offsets.stdout,
                OutputStream::Stderr => offsets.stderr,
            });
            Ok(From::only(stream, resumed.or(offset).unwrap_or(0)))
        }
        (None, Some(_), _) => Err(malformed(
            "offset needs stream=stdout or stream=stderr; for both use stdout_offset and stderr_offset",
        )),
        (None, None, _) if form == Form::Raw => {
            Err(malformed("stream: bytes of both streams cannot be told apart; choose one"))
        }
        (None, None, _) => Ok(From::both(resumed.unwrap_or(Offsets {
            stdout: asked.stdout_offset.unwrap_or(0),
            stderr: asked.stderr_offset.unwrap_or(0),
        }))),
    }
}

/// The offset at which an SSE client reconnects.
fn last_event(headers: &HeaderMap) -> Option<Offsets> {
    let (stdout, stderr) = headers.get("last-event-id")?.to_str().ok()?.split_once('-')?;
    Some(Offsets { stdout: stdout.parse().ok()?, stderr: stderr.parse().ok()? })
}

/// Read or follow the output of an exec, from any offset: NDJSON, Server-Sent Events, or bytes
///
/// The format follows `Accept`: `application/x-ndjson` (the default), `text/event-stream`, or, with `stream`,
/// `application/octet-stream`, which is cut off at a gap.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs/{exec_id}/output", operation_id = "read_exec_output", tag = "execs",
    params(("id" = SandboxId, Path), ("exec_id" = ExecId, Path), ReadOutput),
    responses(
        (status = 200, content(
            (String = "application/x-ndjson"),
            (String = "text/event-stream"),
            (Vec<u8> = "application/octet-stream"),
        )),
        Guarded, WithQuery, OfSandbox
    )
)]
pub async fn output(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, exec): In<ExecId>,
    asked: QueryResult<ReadOutput>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    output_answer(asked, &headers, |from| broker.watch_exec(&who, &sandbox, &exec, from))
}

/// The answer to a request for output, from a watch that starts there.
pub fn output_answer(
    asked: QueryResult<ReadOutput>,
    headers: &HeaderMap,
    watch: impl FnOnce(From) -> Result<ExecWatch, Error>,
) -> Result<Response, Refusal> {
    let asked = query(asked)?;
    let form = Form::accepted(headers).unwrap_or(Form::Ndjson);
    let resumed = last_event(headers).filter(|_| form == Form::Sse);
    let from = beginning(&asked, form, resumed)?;
    let watch = watch(from)?;
    let follow = if asked.follow { Follow::ToTheEnd } else { Follow::WhatIsThere };
    Ok(exec_stream::answer(watch, form, follow, opening(from)))
}

pub fn opening(from: From) -> Opening {
    Opening::At(Offsets { stdout: from.stdout.unwrap_or(0), stderr: from.stderr.unwrap_or(0) })
}
