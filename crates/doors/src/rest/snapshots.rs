//! A sandbox in time: snapshots, turns, rollback, forks, and its history.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::openapi::{Guarded, Inside, Keyed, OfSandbox, Stored, WithBody, WithQuery};
use super::sandboxes::idempotency_key;
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::path::{Id, In};
use crate::kit::query::{QueryResult, query};
use crate::kit::who::Who;
use sandkeep_broker::{Broker, ForkDraft, LogEntry, OnExecs, SnapshotView, View, error::Error};
use sandkeep_core::api::{
    CreateSnapshot, ForkSandbox, Forks, RollbackSandbox, SealTurn, Snapshots, Sorting,
};
use sandkeep_core::{SandboxId, SnapshotName, limits};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// Maximum number of most recent entries; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

#[derive(Serialize, ToSchema)]
pub struct Log {
    /// Oldest first.
    items: Vec<LogEntry>,
}

type Made = (StatusCode, [(HeaderName, String); 1], Json<SnapshotView>);

fn made(id: &SandboxId, view: SnapshotView) -> Made {
    let location = format!("/api/v1/sandboxes/{id}/snapshots/{}", view.id);
    (StatusCode::CREATED, [(LOCATION, location)], Json(view))
}

/// Take a snapshot of a sandbox's files
///
/// All files at one moment; the sandbox is frozen for it. A requested snapshot is kept until it is deleted. If the
/// sandbox has reached its maximum, the oldest turn is removed.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/snapshots", operation_id = "create_snapshot",
    tag = "snapshots",
    params(("id" = SandboxId, Path)),
    request_body = Option<CreateSnapshot>,
    responses(
        (status = 201, body = SnapshotView, headers(("Location" = String, description = "path of the new resource"))),
        Guarded, WithBody, OfSandbox, Inside, Stored
    )
)]
pub async fn create(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Made, Refusal> {
    let CreateSnapshot { name, note } = body::optional(&headers, body).await?;
    Ok(made(&id, broker.snapshot(&who, &id, name, note).await?))
}

/// Record a turn: a snapshot with the next number
///
/// Numbers are never reused. Concurrent turns get different numbers.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/turns", operation_id = "seal_turn", tag = "snapshots",
    params(("id" = SandboxId, Path)),
    request_body = Option<SealTurn>,
    responses(
        (status = 201, body = SnapshotView, headers(("Location" = String, description = "path of the new resource"))),
        Guarded, WithBody, OfSandbox, Inside, Stored
    )
)]
pub async fn seal_turn(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Made, Refusal> {
    let SealTurn { note } = body::optional(&headers, body).await?;
    Ok(made(&id, broker.seal_turn(&who, &id, note).await?))
}

/// List the snapshots of a sandbox, oldest first unless `sort` says otherwise
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/snapshots", operation_id = "list_snapshots",
    tag = "snapshots",
    params(("id" = SandboxId, Path), Sorting),
    responses((status = 200, body = Snapshots), Guarded, WithQuery, OfSandbox)
)]
pub async fn list(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    asked: QueryResult<Sorting>,
) -> Result<Json<Snapshots>, Refusal> {
    let order = query(asked)?.sort.unwrap_or_default();
    Ok(Json(Snapshots { items: order.of_oldest_first(broker.snapshots(&who, &id)?) }))
}

/// Get a snapshot
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/snapshots/{snapshot}", operation_id = "get_snapshot",
    tag = "snapshots",
    params(
        ("id" = SandboxId, Path),
        ("snapshot" = SnapshotName, Path, description = "name or id of the snapshot"),
    ),
    responses((status = 200, body = SnapshotView), Guarded, OfSandbox)
)]
pub async fn get(
    State(broker): State<Broker>,
    Who(who): Who,
    In(id, snapshot): In<SnapshotName>,
) -> Result<Json<SnapshotView>, Refusal> {
    Ok(Json(broker.snapshot_view(&who, &id, &snapshot)?))
}

/// Delete a snapshot
///
/// Forks and templates made from it do not depend on it.
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/snapshots/{snapshot}", operation_id = "delete_snapshot",
    tag = "snapshots",
    params(
        ("id" = SandboxId, Path),
        ("snapshot" = SnapshotName, Path, description = "name or id of the snapshot"),
    ),
    responses((status = 204), Guarded, OfSandbox, Inside)
)]
pub async fn remove(
    State(broker): State<Broker>,
    Who(who): Who,
    In(id, snapshot): In<SnapshotName>,
) -> Result<StatusCode, Refusal> {
    broker.delete_snapshot(&who, &id, &snapshot).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Restore all files of a sandbox from a snapshot
///
/// All processes end, and the sandbox restarts with the files of the snapshot. Id, owner, labels, slot, all snapshots
/// (also later ones) and all forks are kept. A paused or failed sandbox is running afterwards; a stopped one stays
/// stopped. Refused while execs run, which the error names, unless `force` is set.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/rollback", operation_id = "rollback_sandbox",
    tag = "snapshots",
    params(("id" = SandboxId, Path)),
    request_body = RollbackSandbox,
    responses((status = 200, body = View), Guarded, WithBody, OfSandbox, Inside, Stored)
)]
pub async fn rollback(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<View>, Refusal> {
    let asked: RollbackSandbox = body::required(&headers, body).await?;
    Ok(Json(broker.rollback(&who, &id, &asked.snapshot, on_execs(&asked)).await?))
}

/// What happens to running execs when a sandbox is rolled back.
pub fn on_execs(asked: &RollbackSandbox) -> OnExecs {
    if asked.force { OnExecs::End } else { OnExecs::Refuse }
}

/// Create new sandboxes with the files of an existing one
///
/// The forks are running, with the same template, limits, environment, labels and timeouts, and without a slot.
/// Processes are not copied. Either all are created, or none.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/fork", operation_id = "fork_sandbox", tag = "snapshots",
    params(
        ("id" = SandboxId, Path),
        ("Idempotency-Key" = Option<String>, Header, description =
            "1 to 255 visible ASCII characters of the caller's choice. Repeating the request \
             with the same key within a day returns the same sandboxes; errors are not kept"),
    ),
    request_body = Option<ForkSandbox>,
    responses((status = 201, body = Forks), Guarded, WithBody, OfSandbox, Inside, Keyed, Stored)
)]
pub async fn fork(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Forks>), Refusal> {
    let key = idempotency_key(&headers)?;
    let draft = fork_draft(body::optional(&headers, body).await?);
    let sandboxes = broker.fork(&who, &id, draft, key).await?;
    Ok((StatusCode::CREATED, Json(sandboxes.into())))
}

pub fn fork_draft(ForkSandbox { snapshot, count, labels, name }: ForkSandbox) -> ForkDraft {
    ForkDraft { snapshot, count: count.unwrap_or(1), labels: labels.unwrap_or_default(), name }
}

/// Get the history of a sandbox, oldest first
///
/// States, snapshots, rollbacks and forks are recorded in the sandbox's home; execs are those whose journals are kept.
/// The oldest entries of both are removed eventually.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/log", operation_id = "get_sandbox_log", tag = "snapshots",
    params(("id" = SandboxId, Path), LogQuery),
    responses((status = 200, body = Log), Guarded, WithQuery, OfSandbox)
)]
pub async fn log(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    asked: QueryResult<LogQuery>,
) -> Result<Json<Log>, Refusal> {
    broker.require(&who, &id)?;
    let limit = query(asked)?.limit.unwrap_or(limits::PAGE_DEFAULT);
    if !(1..=limits::PAGE_MAX).contains(&limit) {
        let problem = format!("from 1 to {}", limits::PAGE_MAX);
        return Err(Error::InvalidField { field: "limit", problem }.into());
    }
    Ok(Json(Log { items: broker.log(&who, &id, limit).await? }))
}
