//! Reads a JSON body: bounded in size and time, and strict about its fields, so that a misspelt field is refused by
//! name and not ignored.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use super::refusal::Refusal;
use super::request_memory::collect;
use sandkeep_core::limits::{APPLY_FILES_MAX_BYTES, BODY_MAX_BYTES, REFUSED_UPLOAD_READ};

/// The body of a request that requires one.
pub async fn required<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Refusal> {
    parse(&read(headers, body, BODY_MAX_BYTES).await?)
}

/// The body of a request that may list many files.
pub async fn required_list<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Refusal> {
    parse(&read(headers, body, APPLY_FILES_MAX_BYTES).await?)
}

/// The body of a request that may have none.
pub async fn optional<T: DeserializeOwned + Default>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Refusal> {
    let bytes = read(headers, body, BODY_MAX_BYTES).await?;
    match bytes.trim_ascii() {
        // Some clients serialize a missing body as `null`.
        b"" | b"null" => Ok(T::default()),
        _ => parse(&bytes),
    }
}

async fn read(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, Refusal> {
    refuse_other_media(headers)?;
    collect(body, max, || Refusal::BodyTooLarge).await
}

/// Refuses media types that are clearly not JSON. `curl -d` labels everything as a form and some clients use plain
/// text; those bodies are parsed as JSON.
fn refuse_other_media(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let given = String::from_utf8_lossy(value.as_bytes()).into_owned();
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        ""
        | "application/json"
        | "text/json"
        | "text/plain"
        | "application/octet-stream"
        | "application/x-www-form-urlencoded" => Ok(()),
        other if other.ends_with("+json") => Ok(()),
        _ => Err(Refusal::NotJson { given }),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let malformed = |field: &str, e: serde_json::Error| Refusal::BodyMalformed {
        field: Some(field).filter(|f| !f.is_empty() && *f != ".").map(str::to_owned),
        problem: e.to_string(),
    };
    // Serde would also accept an array, with the fields in the order of our source.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        let problem = "expected a JSON object".to_owned();
        return Err(Refusal::BodyMalformed { field: None, problem });
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|e| {
        let field = e.path().to_string();
        malformed(&field, e.into_inner())
    })?;
    json.end().map_err(|e| malformed("", e))?;
    Ok(value)
}

/// Drains a refused upload, so that the client reads our error and not a connection reset.
pub async fn read_away(mut body: Body) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    // A client that sends for longer gets a reset.
    let _ = tokio::time::timeout(REFUSED_UPLOAD_READ, rest).await;
}
