//! The body of a request on its way into a sandbox. It is read only as fast as the sandbox takes it.

use std::future::Future;

use axum::body::Body;
use serde::de::DeserializeOwned;

use crate::kit::Refusal;
use crate::kit::body::read_away;
use crate::kit::paced::Paced;
use sandkeep_broker::{FileUpload, ToolboxInput};

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
    let mut pieces = Paced::new(body);
    while let Some(piece) = pieces.next().await? {
        input.send(&piece).await;
    }
    input.end().await;
    Ok(())
}
