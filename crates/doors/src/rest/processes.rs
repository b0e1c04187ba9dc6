//! Long-running processes of a sandbox, such as servers: start, list, get, read, signal, end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::Response;
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::ToSchema;

use super::execs::argv_of;
use super::known_execs::output_answer;
use super::openapi::{Guarded, Inside, Journaled, OfSandbox, WithBody, WithQuery};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::path::{Id, In};
use crate::kit::query::QueryResult;
use crate::kit::who::Who;
use crate::ports::PortDoor;
use sandkeep_broker::{Broker, ExecDraft, ProcessStatus, ProcessView, error::Error};
use sandkeep_core::api::{CreateProcess, Process, ProcessReady, Processes, ReadOutput};
use sandkeep_core::{
    Port, Principal, Probe, ProcessId, ProcessTerms, Ready, SandboxId, Signal,
    limits::PROCESS_READY_DEFAULT,
};

type Door = Extension<Arc<PortDoor>>;

fn ready_of(asked: ProcessReady) -> Result<Ready, Error> {
    let probe = match (asked.http_path, asked.tcp) {
        (Some(path), None | Some(false)) => Probe::Http { path },
        (None, Some(true)) => Probe::Tcp,
        (Some(_), Some(true)) | (None, None | Some(false)) => {
            let problem = "give either http_path or tcp: true".to_owned();
            return Err(Error::InvalidField { field: "ready", problem });
        }
    };
    let timeout_secs = asked.timeout_secs.unwrap_or(PROCESS_READY_DEFAULT.as_secs());
    Ok(Ready { probe, timeout_secs })
}

fn draft_of(asked: CreateProcess) -> Result<(ExecDraft, ProcessTerms), Error> {
    let draft = ExecDraft {
        argv: argv_of(asked.command, asked.argv)?,
        env: asked.env.unwrap_or_default(),
        cwd: asked.cwd,
        user: asked.user,
        ..ExecDraft::default()
    };
    let ready = asked.ready.map(ready_of).transpose()?;
    Ok((draft, ProcessTerms { port: asked.port, ready }))
}

/// What is needed to compute the URLs of a port.
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
) -> Result<Places<'a>, Error> {
    let addresses = broker.listeners(who, sandbox).await?;
    Ok(Places { door, sandbox, headers, addresses })
}

/// Starts a process and, if requested, waits until it is ready. `headers` tell how the caller reaches us.
pub async fn start(
    broker: &Broker,
    door: &PortDoor,
    who: &Principal,
    sandbox: &SandboxId,
    asked: CreateProcess,
    headers: &HeaderMap,
) -> Result<Process, Error> {
    let (draft, terms) = draft_of(asked)?;
    let id = broker.launch(who, sandbox, draft, terms.clone()).await?;
    if let Some(port) = terms.port
        && door.require_local().is_ok()
    {
        broker.listen(who, sandbox, port).await?;
    }
    if terms.ready.is_some() {
        broker.await_ready(who, sandbox, &id, &terms).await?;
    }
    let process = broker.process(who, sandbox, &id).await?;
    let ended = process.status == ProcessStatus::Exited;
    let mut shown = places(broker, door, who, sandbox, headers).await?.show(process);
    if ended {
        shown.last_output = Some(broker.last_output(who, sandbox, &id).await?);
    }
    Ok(shown)
}

/// All processes, with the URLs of their ports.
pub async fn all(
    broker: &Broker,
    door: &PortDoor,
    who: &Principal,
    sandbox: &SandboxId,
    headers: &HeaderMap,
) -> Result<Processes, Error> {
    let all = broker.processes(who, sandbox).await?;
    let places = places(broker, door, who, sandbox, headers).await?;
    Ok(Processes { items: all.into_iter().map(|process| places.show(process)).collect() })
}

/// Start a process; with `ready`, answers when it is ready
///
/// It has no timeout and runs until it exits, is ended, or its sandbox stops; starting the sandbox does not restart it.
/// With `ready` the answer's state is `running`, or `starting` if the time limit was reached first, or `exited` with
/// the last output if it ended first.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/processes", operation_id = "create_process", tag = "processes",
    params(("id" = SandboxId, Path)),
    request_body = CreateProcess,
    responses(
        (status = 201, body = Process, headers(("Location" = String, description = "path of the new resource"))),
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
    let asked = body::required(&headers, body).await?;
    let process = start(&broker, &door, &who, &sandbox, asked, &headers).await?;
    let location = format!("/api/v1/sandboxes/{sandbox}/processes/{}", process.process.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(process)))
}

/// List the processes of a sandbox, including ended ones, oldest first
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/processes", operation_id = "list_processes", tag = "processes",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = Processes), Guarded, OfSandbox)
)]
pub async fn list(
    State(broker): State<Broker>,
    Extension(door): Door,
    Who(who): Who,
    Id(sandbox): Id,
    headers: HeaderMap,
) -> Result<Json<Processes>, Refusal> {
    Ok(Json(all(&broker, &door, &who, &sandbox, &headers).await?))
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
    params(("id" = SandboxId, Path), ("process_id" = ProcessId, Path), ReadOutput),
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
    asked: QueryResult<ReadOutput>,
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
/// Answers when the whole tree is gone. The outcome is that of the first process; `canceled` if it had to be killed. A
/// process that has already ended is not changed, and its background processes continue.
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
