//! What changed in a sandbox, and having some of it be as it was.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::openapi::{Guarded, Inside, OfSandbox, Stored, WithBody, WithQuery};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::path::Id;
use crate::kit::query::{Asked, query};
use crate::kit::who::Who;
use sandkeep_broker::{Broker, DiffBundle, DiffRequest, DiffText};
use sandkeep_core::{SandboxId, SnapshotName};
use sandkeep_tree::diff::ToldDiff;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DiffQuery {
    /// A snapshot, by id or name, `base` for what the sandbox was made from, or `now`. The newest snapshot if it
    /// is not said, and `base` if there is none.
    from: Option<String>,
    /// The same; `now` if it is not said.
    to: Option<String>,
    /// Only this file or directory and what is in it; absolute.
    path: Option<String>,
    /// Include the changed lines, as `diff -u` does.
    text: Option<bool>,
    /// Maximum number of changes: 10,000 by default, at most 200,000.
    #[param(minimum = 1, maximum = 200_000)]
    limit: Option<usize>,
    /// `json` by default.
    format: Option<Shape>,
}

/// How a diff is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DiffFormat)]
pub enum Shape {
    Json,
    /// A tar with the files that are new or hold something new, as they are in `to`, under their paths without the
    /// slash. Its first file is `sandkeep-diff.json`: the diff, with a `digest` of every regular file before
    /// and after. One moment of the sandbox, in constant memory; `text` and `limit` do not apply.
    Tar,
}

/// Compare the files of a sandbox at two points in time
///
/// For `now`, a running sandbox is frozen for a moment, as for a snapshot. Mounts, including those from the host, are
/// not compared. Paths are absolute; a path that is not UTF-8 also has its bytes in `path_b64`.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/diff", operation_id = "diff_sandbox", tag = "snapshots",
    params(("id" = SandboxId, Path), DiffQuery),
    responses(
        (status = 200, content((ToldDiff = "application/json"), (Vec<u8> = "application/x-tar"))),
        Guarded, WithQuery, OfSandbox, Inside
    )
)]
pub async fn diff(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    asked: Asked<DiffQuery>,
) -> Result<Response, Refusal> {
    let DiffQuery { from, to, path, text, limit, format } = query(asked)?;
    let text = if text.unwrap_or(false) { DiffText::Told } else { DiffText::NotTold };
    let request = DiffRequest { from, to, path, limit, text };
    match format.unwrap_or(Shape::Json) {
        Shape::Json => Ok(Json(broker.diff(&who, &id, request).await?).into_response()),
        Shape::Tar => Ok(tar(broker.diff_bundle(&who, &id, request).await?)),
    }
}

fn tar(bundle: DiffBundle) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "application/x-tar"), (header::CACHE_CONTROL, "no-store")];
    let pieces = stream::unfold(bundle, |mut bundle| async move {
        let piece = bundle.next().await?;
        Some((piece, bundle))
    });
    (headers, Body::from_stream(pieces)).into_response()
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Revert)]
pub struct RevertBody {
    /// By id or name.
    snapshot: SnapshotName,
    /// Absolute paths of files and directories; of a directory all that is in it.
    #[schema(min_items = 1, max_items = 1000)]
    paths: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Reverted)]
pub struct RevertedBody {
    /// Paths that were restored.
    reverted: Vec<String>,
}

/// Restore files and directories from a snapshot
///
/// They are made, replaced or removed, with owner, mode, attributes and links; nothing else changes, and processes
/// go on. A stopped sandbox whose root is an overlay must be started for it.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/revert", operation_id = "revert_files", tag = "snapshots",
    params(("id" = SandboxId, Path)),
    request_body = RevertBody,
    responses((status = 200, body = RevertedBody), Guarded, WithBody, OfSandbox, Inside, Stored)
)]
pub async fn revert(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<RevertedBody>, Refusal> {
    let RevertBody { snapshot, paths } = body::required(&headers, body).await?;
    let reverted = broker.revert(&who, &id, &snapshot, &paths).await?;
    Ok(Json(RevertedBody { reverted }))
}
