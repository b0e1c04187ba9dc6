//! The body of a request on its way into a sandbox. It is read only as fast as the sandbox takes it.

use std::future::Future;

use axum::body::Body;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use crate::kit::Refusal;
use crate::kit::body::read_away;
use sandkeep_broker::{FileUpload, ToolboxInput};
use sandkeep_core::limits::UPLOAD_SILENCE_MAX;

/// Starts an upload, sends the body, and waits for the result.
pub async fn receive<T: DeserializeOwned>(
    begun: impl Future<Output = Result<FileUpload<T>, Refusal>>,
    mut body: Body,
) -> Result<T, Refusal> {
    let result = match begun.await {
        Ok(upload) => {
            let input = upload.input();
            upload.finish(send(&mut body, &input)).await
        }
        Err(refusal) => Err(refusal),
    };
    if result.is_err() {
        read_away(body).await;
    }
    result
}

async fn send(body: &mut Body, input: &ToolboxInput) -> Result<(), Refusal> {
    while let Some(frame) = tokio::time::timeout(UPLOAD_SILENCE_MAX, body.frame())
        .await
        .map_err(|_| Refusal::BodyTooSlow)?
    {
        let frame = frame.map_err(|e| Refusal::BodyBroken { problem: e.to_string() })?;
        if let Ok(bytes) = frame.into_data() {
            input.send(&bytes).await;
        }
    }
    input.end().await;
    Ok(())
}
