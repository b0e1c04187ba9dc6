//! Uploaded archives, for templates and workspaces.

use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use http_body_util::BodyExt;

use super::openapi::{Guarded, OfSandbox, Stored, WithBody};
use crate::kit::Refusal;
use crate::kit::path::Id;
use crate::kit::who::Who;
use sandkeep_broker::{Broker, Upload, UploadView, error::Error};
use sandkeep_core::{
    Principal, UploadId,
    limits::{REFUSED_UPLOAD_READ, UPLOAD_MAX, UPLOAD_RATE_MIN_BYTES, UPLOAD_SILENCE_MAX},
};

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
    let began = Instant::now();
    // A client that sends a byte a minute must not hold an upload slot.
    let too_slow = |bytes: u64| {
        let took = began.elapsed();
        took > UPLOAD_SILENCE_MAX && bytes < took.as_secs() * UPLOAD_RATE_MIN_BYTES
    };
    while let Some(frame) = tokio::time::timeout(UPLOAD_SILENCE_MAX, body.frame())
        .await
        .map_err(|_| Refusal::BodyTooSlow)?
    {
        if too_slow(upload.bytes()) || began.elapsed() > UPLOAD_MAX {
            return Err(Refusal::BodyTooSlow);
        }
        let frame = frame.map_err(|e| Refusal::BodyBroken { problem: e.to_string() })?;
        if let Ok(bytes) = frame.into_data() {
            upload.write(&bytes).await?;
        }
    }
    Ok(upload)
}

/// Drains a refused upload, so that the client reads our error and not a connection reset.
async fn read_away(mut body: Body) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    // A client that sends for longer gets a reset.
    let _ = tokio::time::timeout(REFUSED_UPLOAD_READ, rest).await;
}
