//! Sessions of MCP over HTTP. Each has a default sandbox of its own.
//!
//! Nothing is kept here: the client carries the id of its session in a header, and the default sandbox is in the slot of
//! that name. It ends with the session, or when nobody has used it for a while. A client that sends no id has the
//! sandbox that all such clients of its owner share; one that names a sandbox in the URL has that one.

use axum::extract::{Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use rmcp::model::Extensions;

use super::DEFAULT_SLOT;
use crate::kit::Refusal;
use crate::kit::who::Who;
use sandkeep_broker::Broker;
use sandkeep_core::{SlotName, SpecDraft, limits};

const SESSION: &str = "mcp-session-id";
/// Every message after the first has it.
const VERSION: &str = "mcp-protocol-version";
const ID_BYTES: usize = 16;

/// Whose default sandbox a message means.
#[derive(Debug, PartialEq, Eq)]
pub enum Means {
    /// The one that the URL names.
    Named(String),
    OfSession(SlotName),
    Shared,
}

impl Means {
    pub fn of(from: &Extensions) -> Self {
        let Some(parts) = from.get::<Parts>() else { return Self::Shared };
        let query: Result<Query<Vec<(String, String)>>, _> = Query::try_from_uri(&parts.uri);
        let Query(query) = query.unwrap_or_default();
        let named = query.into_iter().find(|(name, _)| name == super::SANDBOX);
        match (named, slot(&parts.headers)) {
            (Some((_, name)), _) => Self::Named(name),
            (None, Some(slot)) => Self::OfSession(slot),
            (None, None) => Self::Shared,
        }
    }
}

/// What the sandbox of a session is made as.
pub fn draft(slot: SlotName, usual: &SpecDraft) -> SpecDraft {
    let idle = usual.idle_timeout_secs.unwrap_or(limits::MCP_SESSION_IDLE.as_secs());
    SpecDraft { slot: Some(slot), idle_timeout_secs: Some(idle), ..usual.clone() }
}

/// That of a session whose id is ours.
fn slot(headers: &HeaderMap) -> Option<SlotName> {
    let id = headers.get(SESSION)?.to_str().ok()?;
    let is_ours = id.len() == 2 * ID_BYTES
        && id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    is_ours.then(|| format!("{DEFAULT_SLOT}-{id}").parse().ok()).flatten()
}

/// Gives a new client the id of a session. One whose id is not ours has to begin again.
pub async fn keep(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_first = !headers.contains_key(SESSION) && !headers.contains_key(VERSION);
    if headers.contains_key(SESSION) && slot(headers).is_none() {
        return StatusCode::NOT_FOUND.into_response();
    }
    let mut response = next.run(request).await;
    let mut id = [0; ID_BYTES];
    if is_first && response.status().is_success() && getrandom::fill(&mut id).is_ok() {
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let id = HeaderValue::try_from(id).expect("digits are a header");
        response.headers_mut().insert(SESSION, id);
    }
    response
}

/// `DELETE`: the client ends its session, and with it the sandbox.
pub async fn end(
    State(broker): State<Broker>,
    Who(who): Who,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let Some(slot) = slot(&headers) else {
        return Ok((StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response());
    };
    broker.destroy_slot(&who, &slot).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
