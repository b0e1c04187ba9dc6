//! Processes of a sandbox: servers and other things that stay. Start, list, look, read, signal, end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::Response;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::execs::argv_of;
use super::known_execs::{OutputQuery, output_answer};
use super::openapi::{Guarded, Inside, Journaled, OfSandbox, WithBody, WithQuery};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::path::{Id, In};
use crate::kit::query::Asked;
use crate::kit::who::Who;
use crate::ports::PortDoor;
use sandkeep_broker::{Broker, ExecDraft, ProcessStatus, ProcessView, error::Error};
use sandkeep_core::{
    Port, Principal, Probe, ProcessId, ProcessTerms, Ready, SandboxId, Signal, api::Process,
    limits::PROCESS_READY_DEFAULT,
};

type Door = Extension<Arc<PortDoor>>;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateProcess)]
pub struct ProcessBody {
    /// Run by `/bin/sh -c`; or `argv`.
    command: Option<String>,
    argv: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    user: Option<String>,
    /// The port that it serves: it gets a `url`, a raw `address` in local mode, and is `running` once the
    /// port accepts connections.
    #[schema(value_type = Option<u16>)]
    port: Option<Port>,
    ready: Option<ReadyBody>,
}

/// What to wait for before the answer: give `http_path` or `tcp`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ProcessReady)]
pub struct ReadyBody {
    /// A GET of this path is answered with a status below 400.
    http_path: Option<String>,
    /// `true`: the port accepts a connection.
    tcp: Option<bool>,
    /// 30 by default, at most 600. A process that is not ready by then is reported as `starting` and
    /// continues.
    timeout_secs: Option<u64>,
}

impl ReadyBody {
    fn terms(self) -> Result<Ready, Error> {
        let probe = match (self.http_path, self.tcp) {
            (Some(path), None | Some(false)) => Probe::Http { path },
            (None, Some(true)) => Probe::Tcp,
            (Some(_), Some(true)) | (None, None | Some(false)) => {
                let problem = "give either http_path or tcp: true".to_owned();
                return Err(Error::InvalidField { field: "ready", problem });
            }
        };
        let timeout_secs = self.timeout_secs.unwrap_or(PROCESS_READY_DEFAULT.as_secs());
        Ok(Ready { probe, timeout_secs })
    }
}

impl ProcessBody {
    fn into_draft(self) -> Result<(ExecDraft, ProcessTerms), Error> {
        let draft = ExecDraft {
            argv: argv_of(self.command, self.argv)?,
            env: self.env.unwrap_or_default(),
            cwd: self.cwd,
            user: self.user,
            ..ExecDraft::default()
        };
        let ready = self.ready.map(ReadyBody::terms).transpose()?;
        Ok((draft, ProcessTerms { port: self.port, ready }))
    }
}

/// What is needed to say where a port is.
struct Places<'a> {
    door: &'a PortDoor,
    sandbox: &'a SandboxId,
    headers: &'a HeaderMap,
    addresses: BTreeMap<Port, SocketAddr>,
}

impl Places<'_> {
    fn show(&self, process: ProcessView) -> Process {
        let port = process.port.filter(|_| process.status != ProcessStatus::Exited);
        Process {
            address: port.and_then(|port| self.addresses.get(&port).copied()),
            url: port.map(|port| self.door.url(self.sandbox, port, self.headers)),
            last_output: None,
            process,
        }
    }
}

async fn places<'a>(
    broker: &Broker,
    door: &'a PortDoor,
    who: &Principal,
    sandbox: &'a SandboxId,
    headers: &'a HeaderMap,
) -> Result<Places<'a>, Refusal> {
    let addresses = broker.listeners(who, sandbox).await?;
    Ok(Places { door, sandbox, headers, addresses })
}

/// Start a process; with `ready`, answers when it is ready
///
/// It has no timeout and runs until it ends, is ended, or its sandbox stops; a start of the sandbox
/// does not bring it back. With `ready` the answer says `running`, or `starting` if the time was over
/// before, or `exited` with the last output if it ended before.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/processes", operation_id = "create_process", tag = "processes",
    params(("id" = SandboxId, Path)),
    request_body = ProcessBody,
    responses(
        (status = 201, body = Process, headers(("Location" = String, description = "its path"))),
        Guarded, WithBody, OfSandbox, Inside, Journaled
    )
)]
pub async fn create(
    State(broker): State<Broker>,
    Extension(door): Door,
    Who(who): Who,
    Id(sandbox): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<Process>), Refusal> {
    let body: ProcessBody = body::required(&headers, body).await?;
    let (draft, terms) = body.into_draft()?;
    let id = broker.launch(&who, &sandbox, draft, terms.clone()).await?;
    if let Some(port) = terms.port
        && door.require_local().is_ok()
    {
        broker.listen(&who, &sandbox, port).await?;
    }
    if terms.ready.is_some() {
        broker.await_ready(&who, &sandbox, &id, &terms).await?;
    }
    let process = broker.process(&who, &sandbox, &id).await?;
    let ended = process.status == ProcessStatus::Exited;
    let mut shown = places(&broker, &door, &who, &sandbox, &headers).await?.show(process);
    if ended {
        shown.last_output = Some(broker.last_output(&who, &sandbox, &id).await?);
    }
    let location = format!("/api/v1/sandboxes/{sandbox}/processes/{id}");
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(shown)))
}

#[derive(Serialize, ToSchema)]
#[schema(as = Processes)]
pub struct Listing {
    items: Vec<Process>,
}

/// List the processes of a sandbox, including ended ones, oldest first
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/processes", operation_id = "list_processes", tag = "processes",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = Listing), Guarded, OfSandbox)
)]
pub async fn list(
    State(broker): State<Broker>,
    Extension(door): Door,
    Who(who): Who,
    Id(sandbox): Id,
    headers: HeaderMap,
) -> Result<Json<Listing>, Refusal> {
    let all = broker.processes(&who, &sandbox).await?;
    let places = places(&broker, &door, &who, &sandbox, &headers).await?;
    Ok(Json(Listing { items: all.into_iter().map(|process| places.show(process)).collect() }))
}

/// Get a process; its outcome is kept until the sandbox is destroyed
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/processes/{process_id}", operation_id = "get_process", tag = "processes",
    params(("id" = SandboxId, Path), ("process_id" = ProcessId, Path)),
    responses((status = 200, body = Process), Guarded, OfSandbox)
)]
pub async fn get(
    State(broker): State<Broker>,
    Extension(door): Door,
    Who(who): Who,
    In(sandbox, process): In<ProcessId>,
    headers: HeaderMap,
) -> Result<Json<Process>, Refusal> {
    let process = broker.process(&who, &sandbox, &process).await?;
    Ok(Json(places(&broker, &door, &who, &sandbox, &headers).await?.show(process)))
}

/// Read or follow the output of a process, from any offset, in the formats of an exec's output
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/processes/{process_id}/logs", operation_id = "read_process_logs",
    tag = "processes",
    params(("id" = SandboxId, Path), ("process_id" = ProcessId, Path), OutputQuery),
    responses(
        (status = 200, content(
            (String = "application/x-ndjson"),
            (String = "text/event-stream"),
            (Vec<u8> = "application/octet-stream"),
        )),
        Guarded, WithQuery, OfSandbox
    )
)]
pub async fn logs(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, process): In<ProcessId>,
    asked: Asked<OutputQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    output_answer(asked, &headers, |from| broker.watch_process(&who, &sandbox, &process, from))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SignalProcess)]
pub struct SignalBody {
    /// `SIGTERM`, `TERM` or 15; SIGTERM by default.
    #[schema(value_type = Option<String>)]
    signal: Option<Signal>,
}

/// Send a signal to a process
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/processes/{process_id}/signal", operation_id = "signal_process",
    tag = "processes",
    params(("id" = SandboxId, Path), ("process_id" = ProcessId, Path)),
    request_body = Option<SignalBody>,
    responses((status = 204), Guarded, WithBody, OfSandbox, Inside)
)]
pub async fn signal(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, process): In<ProcessId>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let SignalBody { signal } = body::optional(&headers, body).await?;
    broker.signal_process(&who, &sandbox, &process, signal.unwrap_or(Signal::TERM)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// End a process tree: SIGTERM to all, after ten seconds SIGKILL to the rest
///
/// Answered when nothing of it is left. How its first process ended is its end; `canceled` if that had to be
/// killed. One that has ended stays as it is, and so does what it left in the background.
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/processes/{process_id}", operation_id = "end_process",
    tag = "processes",
    params(("id" = SandboxId, Path), ("process_id" = ProcessId, Path)),
    responses((status = 204), Guarded, OfSandbox, Inside)
)]
pub async fn end(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, process): In<ProcessId>,
) -> Result<StatusCode, Refusal> {
    broker.end_process(&who, &sandbox, &process).await?;
    Ok(StatusCode::NO_CONTENT)
}
