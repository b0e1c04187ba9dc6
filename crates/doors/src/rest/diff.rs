//! Diffs of a sandbox, and reverting some of its files.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;

use super::openapi::{Guarded, Inside, OfSandbox, Stored, WithBody, WithQuery};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::long_answer::heavy_answer;
use crate::kit::path::Id;
use crate::kit::query::{QueryResult, query};
use crate::kit::who::Who;
use sandkeep_broker::{Broker, DiffBundle, DiffRequest, DiffText};
use sandkeep_core::SandboxId;
use sandkeep_core::api::{DiffFormat, DiffSandbox, PlanFormat, Revert, Reverted};
use sandkeep_tree::apply::{ApplyPlan, PlanRequest};
use sandkeep_tree::diff::DiffReport;

/// Compare the files of a sandbox at two points in time
///
/// For `now`, a running sandbox is frozen for a moment, as for a snapshot. Mounts, including those from the host, are
/// not compared. Paths in the answer are absolute; a path that is not UTF-8 is also given as bytes in `path_b64`.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/diff", operation_id = "diff_sandbox", tag = "snapshots",
    params(("id" = SandboxId, Path), DiffSandbox),
    responses(
        (status = 200, content((DiffReport = "application/json"), (Vec<u8> = "application/x-tar"))),
        Guarded, WithQuery, OfSandbox, Inside
    )
)]
pub async fn diff(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    asked: QueryResult<DiffSandbox>,
) -> Result<Response, Refusal> {
    let asked = query(asked)?;
    match asked.format.unwrap_or(DiffFormat::Json) {
        DiffFormat::Json => {
            let (told, space) = broker.diff(&who, &id, wanted(asked)).await?;
            Ok(heavy_answer(&told, space))
        }
        DiffFormat::Tar => Ok(tar(broker.diff_bundle(&who, &id, wanted(asked)).await?)),
    }
}

/// The diff request, independent of the answer's format.
pub fn wanted(asked: DiffSandbox) -> DiffRequest {
    let DiffSandbox { from, to, path, text, limit, format: _ } = asked;
    let text = if text.unwrap_or(false) { DiffText::Included } else { DiffText::Omitted };
    DiffRequest { from, to, path, limit, text }
}

pub fn tar(bundle: DiffBundle) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "application/x-tar"), (header::CACHE_CONTROL, "no-store")];
    let pieces = stream::unfold(bundle, |mut bundle| async move {
        let piece = bundle.next().await?;
        Some((piece, bundle))
    });
    (headers, Body::from_stream(pieces)).into_response()
}

/// Plan how a directory of the caller gets the changes of a sandbox
///
/// The request describes the caller's directory. The answer has the steps that bring the changes there, and the files
/// that changed on both sides. Nothing is changed in the sandbox. With `format=tar` the answer is an archive of the
/// same moment: first the plan as `sandkeep-plan.json`, then the files that it writes, under their paths in the sandbox.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/apply/plan", operation_id = "plan_apply", tag = "snapshots",
    params(("id" = SandboxId, Path), PlanFormat),
    request_body = PlanRequest,
    responses(
        (status = 200, content((ApplyPlan = "application/json"), (Vec<u8> = "application/x-tar"))),
        Guarded, WithBody, WithQuery, OfSandbox, Inside
    )
)]
pub async fn apply_plan(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    asked: QueryResult<PlanFormat>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let format = query(asked)?.format.unwrap_or(DiffFormat::Json);
    let request: PlanRequest = body::required_list(&headers, body).await?;
    match format {
        DiffFormat::Json => {
            let (plan, space) = broker.apply_plan(&who, &id, request).await?;
            Ok(heavy_answer(&plan, space))
        }
        DiffFormat::Tar => Ok(tar(broker.apply_bundle(&who, &id, request).await?)),
    }
}

/// Restore files and directories from a snapshot
///
/// They are created, replaced or removed, with owner, mode, attributes and links. Nothing else changes, and processes
/// keep running. A stopped sandbox whose root is an overlay must be started first.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/revert", operation_id = "revert_files", tag = "snapshots",
    params(("id" = SandboxId, Path)),
    request_body = Revert,
    responses((status = 200, body = Reverted), Guarded, WithBody, OfSandbox, Inside, Stored)
)]
pub async fn revert(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Reverted>, Refusal> {
    let Revert { snapshot, paths } = body::required(&headers, body).await?;
    let reverted = broker.revert(&who, &id, &snapshot, &paths).await?;
    Ok(Json(Reverted { reverted }))
}
