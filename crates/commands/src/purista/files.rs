//! readFile and writeFiles.

use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use sandkeep_broker::Broker;
use sandkeep_broker::error::Error;
use sandkeep_core::limits::BODY_MAX_BYTES;
use sandkeep_core::{Principal, SandboxId};
use serde_json::json;
use toolbox::{Parents, RawPath, WriteFile, Written};

use super::door::{Failed, Fault};
use super::workspace::absolute;

/// A file as text. Bytes that are not UTF-8 are replaced.
pub async fn read(
    broker: &Broker,
    who: &Principal,
    id: &SandboxId,
    path: &str,
) -> Result<Response, Failed> {
    let path = RawPath::from(absolute(path).as_str());
    let (_, mut stream) = broker.read_file(who, id, path, None).await?;
    let mut content = Vec::new();
    while let Some(bytes) = stream.next().await? {
        // No message is larger.
        if content.len() + bytes.len() > BODY_MAX_BYTES {
            return Err(Fault::new(413, "the file is too large").into());
        }
        content.extend_from_slice(&bytes);
    }
    Ok(Json(String::from_utf8_lossy(&content)).into_response())
}

/// Each file is written whole or not at all, one after the other.
pub async fn write(
    broker: &Broker,
    who: &Principal,
    id: &SandboxId,
    files: Vec<(String, Bytes)>,
) -> Result<Response, Failed> {
    let updated = files.len();
    for (path, content) in files {
        let path = RawPath::from(absolute(&path).as_str());
        let request = WriteFile { path, mode: None, parents: Parents::Make };
        let upload = broker.write_file(who, id, request).await?;
        let input = upload.input();
        let sending = async {
            input.send(&content).await;
            input.end().await;
            Ok::<(), Error>(())
        };
        let _: Written = upload.finish(sending).await?;
    }
    Ok(Json(json!({ "updated": updated })).into_response())
}
