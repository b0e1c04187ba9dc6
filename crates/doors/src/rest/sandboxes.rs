//! Sandboxes: create, ensure, list, get, patch, keepalive, stats, start, stop, pause, resume, destroy.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::ToSchema;

use super::listing::{ListFilter, page};
use super::openapi::{
    Carried, Guarded, InState, Inside, Keyed, OfSandbox, Sourced, Stored, WithBody, WithQuery,
};
use crate::kit::Refusal;
use crate::kit::audit::Concerns;
use crate::kit::body;
use crate::kit::path::Id;
use crate::kit::query::{QueryResult, query};
use crate::kit::who::{MayName, Who};
use sandkeep_broker::{Broker, InFlight, StatsView, View, error::Error};
use sandkeep_core::api::{Ensured, ListSandboxes, PauseSandbox, ReadUsage, Sandboxes, Usage};
use sandkeep_core::{
    HostPaths, IdempotencyKey, InvalidCallerId, SandboxId, SpecDraft, TermsPatch, limits,
};

/// The header that makes a create idempotent.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeepaliveSandbox)]
pub struct KeepaliveBody {
    /// A new timeout; unchanged if left out.
    #[schema(minimum = 1)]
    timeout_secs: Option<u64>,
}

/// Create a sandbox
#[utoipa::path(
    post, path = "/api/v1/sandboxes", operation_id = "create_sandbox", tag = "sandboxes",
    params(
        ("Idempotency-Key" = Option<String>, Header, description =
            "1 to 255 visible ASCII characters of the caller's choice. Repeating the request \
             with the same key within a day returns the same sandbox; errors are not kept"),
    ),
    request_body = Option<SpecDraft>,
    responses(
        (status = 201, body = View, headers(("Location" = String, description = "path of the new resource"))),
        Guarded, WithBody, Inside, Keyed, Sourced, Stored
    )
)]
pub async fn create(
    State(broker): State<Broker>,
    Who(who): Who,
    MayName(reach): MayName,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<View>), Refusal> {
    let key = idempotency_key(&headers)?;
    let draft = reaching(body::optional(&headers, body).await?, reach);
    let view = match key {
        Some(key) => broker.create_once(&who, draft, key).await?,
        None => broker.create(&who, draft).await?,
    };
    let location = format!("/api/v1/sandboxes/{}", view.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(view)))
}

/// The draft of the caller, with the host paths that it may name.
fn reaching(mut draft: SpecDraft, reach: HostPaths) -> SpecDraft {
    if let Some(source) = &mut draft.source {
        source.reach = reach;
    }
    draft
}

pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Refusal> {
    let wrong =
        |problem: String| Refusal::from(Error::InvalidField { field: "Idempotency-Key", problem });
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(wrong("it is given twice".to_owned())),
        (Some(value), None) => {
            let text = value.to_str().unwrap_or_default();
            text.parse().map(Some).map_err(|e: InvalidCallerId| wrong(e.to_string()))
        }
    }
}

/// Return the healthy sandbox of a slot, or create one
///
/// A stopped sandbox is started. A failed one, or one whose guest does not answer, is destroyed and replaced. An
/// existing one is returned as it is, whatever else the request contains.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/ensure", operation_id = "ensure_sandbox", tag = "sandboxes",
    request_body(content = SpecDraft, description = "as for create; `slot` is required"),
    responses((status = 200, body = Ensured), Guarded, WithBody, Inside, Sourced, Stored)
)]
pub async fn ensure(
    State(broker): State<Broker>,
    Who(who): Who,
    MayName(reach): MayName,
    headers: HeaderMap,
    body: Body,
) -> Result<(Extension<Concerns>, Json<Ensured>), Refusal> {
    let draft = reaching(body::required(&headers, body).await?, reach);
    let ensured = broker.ensure(&who, draft).await?;
    Ok((Extension(Concerns::sandbox(&ensured.sandbox.id)), Json(ensured)))
}

/// List sandboxes, oldest first by default
#[utoipa::path(
    get, path = "/api/v1/sandboxes", operation_id = "list_sandboxes", tag = "sandboxes",
    params(ListSandboxes),
    responses((status = 200, body = Sandboxes), Guarded, WithQuery)
)]
pub async fn list(
    State(broker): State<Broker>,
    Who(who): Who,
    ListFilter(filter): ListFilter,
) -> Result<Json<Sandboxes>, Refusal> {
    Ok(Json(page(broker.list(&who, &filter).await?)))
}

/// Get a sandbox
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}", operation_id = "get_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = View), Guarded, OfSandbox)
)]
pub async fn get(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<View>, Refusal> {
    Ok(Json(broker.get(&who, &id).await?))
}

/// Change labels and timeouts
///
/// A JSON merge patch: omitted fields stay, `null` removes. A new timeout counts from now.
#[utoipa::path(
    patch, path = "/api/v1/sandboxes/{id}", operation_id = "patch_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    request_body = TermsPatch,
    responses((status = 200, body = View), Guarded, WithBody, OfSandbox, InState)
)]
pub async fn amend(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<View>, Refusal> {
    let patch = body::required(&headers, body).await?;
    Ok(Json(broker.amend(&who, &id, patch).await?))
}

/// Restart the timeouts of a sandbox
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/keepalive", operation_id = "keepalive_sandbox",
    tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    request_body = Option<KeepaliveBody>,
    responses((status = 200, body = View), Guarded, WithBody, OfSandbox, InState)
)]
pub async fn keepalive(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<View>, Refusal> {
    let KeepaliveBody { timeout_secs } = body::optional(&headers, body).await?;
    Ok(Json(broker.keepalive(&who, &id, timeout_secs).await?))
}

/// Get the resource usage of a sandbox
///
/// A sandbox that does not run uses only disk space.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/stats", operation_id = "get_sandbox_stats",
    tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = StatsView), Guarded, OfSandbox)
)]
pub async fn stats(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<StatsView>, Refusal> {
    Ok(Json(broker.stats(&who, &id).await?))
}

/// Get what owners have used in a period
///
/// Callers see their own use, administrators that of all owners. Sums are kept for 400 days, also of sandboxes that do
/// not exist any more. A daemon that is killed may forget what was used in its last minute.
#[utoipa::path(
    get, path = "/api/v1/usage", operation_id = "get_usage", tag = "sandboxes",
    params(ReadUsage),
    responses((status = 200, body = Usage), Guarded, WithQuery)
)]
pub async fn usage(
    State(broker): State<Broker>,
    Who(who): Who,
    asked: QueryResult<ReadUsage>,
) -> Result<Json<Usage>, Refusal> {
    let ReadUsage { from, to } = query(asked)?;
    Ok(Json(broker.usage(&who, from, to).await?))
}

/// Start a stopped or failed sandbox
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/start", operation_id = "start_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = View), Guarded, OfSandbox, Inside, Carried)
)]
pub async fn start(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<View>, Refusal> {
    Ok(Json(broker.start(&who, &id).await?))
}

/// Stop a sandbox; its files are kept
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/stop", operation_id = "stop_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = View), Guarded, OfSandbox, Inside)
)]
pub async fn stop(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<View>, Refusal> {
    Ok(Json(broker.stop(&who, &id).await?))
}

/// What happens to running commands when a sandbox is paused.
pub fn in_flight(asked: &PauseSandbox) -> Result<InFlight, Error> {
    let drain = asked.drain_secs.map_or(limits::PAUSE_DRAIN_DEFAULT, Duration::from_secs);
    if drain > limits::PAUSE_DRAIN_MAX {
        let problem = format!("at most {}", limits::PAUSE_DRAIN_MAX.as_secs());
        return Err(Error::InvalidField { field: "drain_secs", problem });
    }
    match (asked.force, asked.drain_secs) {
        (true, Some(_)) => {
            let problem = "nothing is waited for with force; leave one of them out".to_owned();
            Err(Error::InvalidField { field: "drain_secs", problem })
        }
        (true, None) => Ok(InFlight::Freeze),
        (false, _) => Ok(InFlight::Drain(drain)),
    }
}

/// Pause a sandbox: freeze its processes
///
/// Running execs may finish first; if they do not in time, the request is refused and the error names them. Processes
/// and shells are frozen and continue after `resume`. Timeouts of execs keep counting.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/pause", operation_id = "pause_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    request_body = Option<PauseSandbox>,
    responses((status = 200, body = View), Guarded, WithBody, OfSandbox, Inside)
)]
pub async fn pause(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<View>, Refusal> {
    let asked = body::optional(&headers, body).await?;
    Ok(Json(broker.pause(&who, &id, in_flight(&asked)?).await?))
}

/// Resume a paused sandbox
///
/// The timeout counts from now.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/resume", operation_id = "resume_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = View), Guarded, OfSandbox, Inside)
)]
pub async fn resume(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<View>, Refusal> {
    Ok(Json(broker.resume(&who, &id).await?))
}

/// Destroy a sandbox and everything in it
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}", operation_id = "destroy_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    responses((status = 204), Guarded, OfSandbox, InState)
)]
pub async fn destroy(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<StatusCode, Refusal> {
    broker.destroy(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
