//! Uploaded archives, for templates and workspaces.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;

use super::openapi::{Guarded, OfSandbox, Stored, WithBody};
use crate::kit::Refusal;
use crate::kit::body::read_away;
use crate::kit::paced::Paced;
use crate::kit::path::Id;
use crate::kit::who::Who;
use sandkeep_broker::{Broker, Upload, UploadView, error::Error};
use sandkeep_core::{Principal, UploadId};

/// Upload an archive for workspaces
///
/// The body is a tar of the files, plain, gzip or zstd. A sandbox that is created with `{"source": {"upload": id}}`
/// gets them. An upload is kept for an hour, and can be used for several sandboxes.
#[utoipa::path(
    post, path = "/api/v1/uploads", operation_id = "create_upload", tag = "sandboxes",
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses((status = 201, body = UploadView), Guarded, WithBody, Stored)
)]
pub async fn create(
    State(broker): State<Broker>,
    Who(who): Who,
    body: Body,
) -> Result<(StatusCode, Json<UploadView>), Refusal> {
    let upload = receive(&broker, &who, broker.may_upload(&who), body).await?;
    Ok((StatusCode::CREATED, Json(broker.keep_upload(&who, upload).await?)))
}

/// Delete an uploaded archive
///
/// Sandboxes created from it keep their files.
#[utoipa::path(
    delete, path = "/api/v1/uploads/{id}", operation_id = "remove_upload", tag = "sandboxes",
    params(("id" = UploadId, Path)),
    responses((status = 204, description = "deleted"), Guarded, OfSandbox)
)]
pub async fn remove(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id<UploadId>,
) -> Result<StatusCode, Refusal> {
    broker.remove_upload(&who, &id)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Receives a body once it is `admitted`, so that a refusal comes before gigabytes were written.
pub(super) async fn receive(
    broker: &Broker,
    who: &Principal,
    admitted: Result<(), Error>,
    mut body: Body,
) -> Result<Upload, Refusal> {
    let received = match admitted {
        Ok(()) => take_in(broker, who, &mut body).await,
        Err(refused) => Err(refused.into()),
    };
    if received.is_err() {
        read_away(body).await;
    }
    received
}

async fn take_in(broker: &Broker, who: &Principal, body: &mut Body) -> Result<Upload, Refusal> {
    let mut upload = broker.begin_upload(who).await?;
    let mut pieces = Paced::new(body);
    while let Some(piece) = pieces.next().await? {
        upload.write(&piece).await?;
    }
    Ok(upload)
}
