//! Requests of the REST door, made on behalf of whoever calls.

use std::collections::BTreeMap;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rmcp::model::Extensions;
use serde_json::Value;

use crate::kit::Connection;
use sandkeep_core::limits;

/// What of the caller's request goes on with the request that is made for it: who it is, and by which way it
/// came, for the REST door judges by both.
const HANDED_ON: [HeaderName; 4] =
    [AUTHORIZATION, HeaderName::from_static("x-api-key"), HOST, ORIGIN];

/// What is read here. Live answers are asked for by the query, and come line by line.
pub const ACCEPTED: &str = "application/json, application/x-ndjson";

/// A request of the REST door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    pub method: Method,
    /// Encoded, with its query.
    pub path: String,
    /// JSON; `None` for no body.
    pub body: Option<String>,
}

impl Outgoing {
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), body: None }
    }

    pub fn post(path: impl Into<String>, body: &Value) -> Self {
        Self { method: Method::POST, path: path.into(), body: Some(body.to_string()) }
    }
}

/// What the REST door answers, as it comes.
pub struct Answering {
    pub status: StatusCode,
    pub content_type: Option<String>,
    pub chunks: BoxStream<'static, Result<Bytes, Unreachable>>,
}

/// What the REST door answered, in whole.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub content_type: Option<String>,
    pub body: Vec<u8>,
}

impl Answering {
    pub async fn whole(mut self) -> Result<Reply, Unreachable> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunks.next().await {
            body.extend_from_slice(&chunk?);
            bounded(&body)?;
        }
        Ok(Reply { status: self.status, content_type: self.content_type, body })
    }
}

/// Answers that come line by line, each line one JSON value.
pub struct Lines {
    chunks: BoxStream<'static, Result<Bytes, Unreachable>>,
    pending: Vec<u8>,
}

impl Lines {
    pub fn of(answering: Answering) -> Self {
        Self { chunks: answering.chunks, pending: Vec::new() }
    }

    /// The next line. That there is none is an error: the last line says of itself that it is.
    pub async fn next(&mut self) -> Result<Value, Unreachable> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|e| Unreachable { problem: format!("a line is no JSON: {e}") });
            }
            let broken = || Unreachable { problem: "the answer broke off".to_owned() };
            let chunk = self.chunks.next().await.ok_or_else(broken)??;
            self.pending.extend_from_slice(&chunk);
            bounded(&self.pending)?;
        }
    }
}

fn bounded(body: &[u8]) -> Result<(), Unreachable> {
    match body.len() > limits::MCP_ANSWER_MAX_BYTES {
        true => {
            let problem = "the answer is too long; ask for less, or for a part".to_owned();
            Err(Unreachable { problem })
        }
        false => Ok(()),
    }
}

impl Reply {
    pub fn is_success(&self) -> bool {
        self.status.is_success()
    }

    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// The door cannot be reached, or what it said could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct Unreachable {
    pub problem: String,
}

/// A REST door, near or far. A call that is dropped, or whose answer is, gives its request up.
#[async_trait]
pub trait Rest: Send + Sync + 'static {
    /// `from` is what is known of the caller's own request.
    async fn begin(&self, request: Outgoing, from: &Extensions) -> Result<Answering, Unreachable>;

    async fn call(&self, request: Outgoing, from: &Extensions) -> Result<Reply, Unreachable> {
        self.begin(request, from).await?.whole().await
    }
}

/// The door of this process, for callers whose own requests say who they are.
pub struct Inside {
    router: TowerToHyperService<Router>,
}

impl Inside {
    pub fn new(router: Router) -> Self {
        Self { router: TowerToHyperService::new(router) }
    }
}

/// The request as the door gets it. What does not come with a request of its own comes from nowhere, and is refused.
fn request(outgoing: Outgoing, from: &Extensions) -> Result<Request<Body>, Unreachable> {
    let builder = Request::builder().method(outgoing.method).uri(outgoing.path);
    let body = outgoing.body.map_or_else(Body::empty, Body::from);
    let mut request = builder.body(body).map_err(|e| Unreachable { problem: e.to_string() })?;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED));
    let Some(parts) = from.get::<Parts>() else { return Ok(request) };
    for name in HANDED_ON {
        if let Some(value) = parts.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    if let Some(connection) = parts.extensions.get::<Connection>() {
        request.extensions_mut().insert(connection.clone());
    }
    Ok(request)
}

#[async_trait]
impl Rest for Inside {
    async fn begin(&self, request: Outgoing, from: &Extensions) -> Result<Answering, Unreachable> {
        let request = self::request(request, from)?;
        let Ok(response) = self.router.call(request).await;
        let (parts, body) = response.into_parts();
        let unread = |e: axum::Error| Unreachable { problem: format!("the answer broke off: {e}") };
        let chunks = body.into_data_stream().map_err(unread).boxed();
        let content_type = content_type(&parts.headers);
        Ok(Answering { status: parts.status, content_type, chunks })
    }
}

pub fn content_type(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(CONTENT_TYPE)?.to_str().ok()?.to_owned())
}

/// A path with a query, encoded.
pub fn with_query(path: &str, query: &BTreeMap<String, String>) -> String {
    if query.is_empty() {
        return path.to_owned();
    }
    let pairs: Vec<String> =
        query.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    format!("{path}?{}", pairs.join("&"))
}

/// Percent-encoded, so that it is one segment of a path or one value of a query.
pub fn encoded(text: &str) -> String {
    const RESERVED: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, RESERVED).to_string()
}
