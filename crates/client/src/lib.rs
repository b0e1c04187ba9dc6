//! A typed client for Sandkeep's REST API.
//!
//! [`Client`] has a method for each common request ([`Client::create`], [`Client::exec`], [`Client::destroy`], …),
//! which returns the types of [`sandkeep_core::api`]: the same that the daemon serializes. For everything else there
//! are the plain HTTP methods ([`Client::get`], [`Client::post`], …), which parse any type from JSON. A failure is an
//! [`Error`]; a refusal of the daemon contains its [`Problem`]: a stable code, a remedy, and whether to retry.
//!
//! ```no_run
//! use sandkeep_client::{Client, ExecRequest, SpecDraft};
//!
//! # async fn example() -> Result<(), sandkeep_client::Error> {
//! let client = Client::from_env()?;
//! let sandbox = client.create(&SpecDraft::default()).await?;
//! let answer = client.exec(&sandbox.id, &ExecRequest::new(["uname", "-a"])).await?;
//! println!("{}", answer.stdout.stdout.unwrap_or_default());
//! client.destroy(&sandbox.id).await
//! # }
//! ```

mod answers;
mod codebases;
mod connect;
mod error;
mod event_log;
mod events;
mod lines;
mod network;
mod prefix;
mod requests;
#[cfg(test)]
mod tests;

use std::fmt::Display;

use reqwest::header::{
    CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use reqwest::{RequestBuilder, StatusCode};
use sandkeep_core::TraceParent;
use sandkeep_core::limits::{CLIENT_ANSWER_MAX_BYTES, PAGE_MAX};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

pub use answers::{Battery, ExecStarted, Items, Runtime, Runtimes};
pub use connect::{ApiKey, URL_DEFAULT};
pub use error::Error;
pub use event_log::{EventStream, EventsRequest};
pub use events::ExecEvents;
pub use lines::Lines;
pub use requests::ExecRequest;
pub use reqwest::{Body, Method, Response, Url};
pub use sandkeep_core::SpecDraft;
pub use sandkeep_core::api::{ExecEvent, Problem};

/// A connection for messages in both directions.
pub type WebSocket = WebSocketStream<reqwest::Upgraded>;

/// The client of one daemon. It keeps connections open and may be used by several tasks at once.
#[derive(Clone, Debug)]
pub struct Client {
    base: Url,
    http: reqwest::Client,
    traceparent: Option<TraceParent>,
}

impl Client {
    /// The same client, for requests that are steps of this trace.
    pub fn traced(&self, traceparent: Option<TraceParent>) -> Self {
        Self { traceparent, ..self.clone() }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.json(self.request(Method::GET, path)).await
    }

    pub async fn get_query<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &(impl Serialize + ?Sized),
    ) -> Result<T, Error> {
        self.json(self.request(Method::GET, path).query(query)).await
    }

    /// Reads a list page by page: all of it, or its first `limit` items.
    pub async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        limit: Option<usize>,
    ) -> Result<Vec<T>, Error> {
        let limit = limit.unwrap_or(usize::MAX);
        let mut found = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let size = PAGE_MAX.min(limit - found.len());
            let request = self.request(Method::GET, path).query(query);
            let after = cursor.take().map(|cursor| ("cursor", cursor));
            let request = request.query(&[("limit", size)]).query(&Vec::from_iter(after));
            let page: Items<T> = self.json(request).await?;
            found.extend(page.items.into_iter().take(size));
            cursor = page.next_cursor;
            if cursor.is_none() || found.len() >= limit {
                return Ok(found);
            }
        }
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<T, Error> {
        self.json(self.request(Method::POST, path).json(body)).await
    }

    pub async fn post_query<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: &(impl Serialize + ?Sized),
    ) -> Result<T, Error> {
        self.json(self.request(Method::POST, path).query(query).json(body)).await
    }

    pub async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<T, Error> {
        self.json(self.request(Method::PATCH, path).json(body)).await
    }

    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<T, Error> {
        self.json(self.request(Method::PUT, path).json(body)).await
    }

    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    pub async fn delete_query(
        &self,
        path: &str,
        query: &(impl Serialize + ?Sized),
    ) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, path).query(query)).await.map(drop)
    }

    /// A request whose answer has no content.
    pub async fn tell(&self, path: &str, body: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        self.send(self.request(Method::POST, path).json(body)).await.map(drop)
    }

    /// Sends bytes unchanged, for an answer that is read piece by piece.
    pub async fn put_live(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: Body,
    ) -> Result<Response, Error> {
        let request = self.request(Method::PUT, path).query(query).body(body);
        let request = request.header(CONTENT_TYPE, "application/octet-stream");
        self.send(request.header("accept", "application/x-ndjson")).await
    }

    /// Reads bytes unchanged. The query is sent as it is, because a path in it need not be UTF-8.
    pub async fn get_bytes(&self, path: &str, query: &str) -> Result<Response, Error> {
        self.send(self.request_raw(Method::GET, path, query)).await
    }

    /// The same for an answer that is JSON.
    pub async fn get_raw<T: DeserializeOwned>(&self, path: &str, query: &str) -> Result<T, Error> {
        self.json(self.request_raw(Method::GET, path, query)).await
    }

    /// Sends bytes unchanged, with such a query.
    pub async fn put_bytes(&self, path: &str, query: &str, body: Body) -> Result<Value, Error> {
        let request = self.request_raw(Method::PUT, path, query).body(body);
        self.json(request.header(CONTENT_TYPE, "application/octet-stream")).await
    }

    fn request_raw(&self, method: Method, path: &str, query: &str) -> RequestBuilder {
        let mut url = self.base.clone();
        url.set_path(path);
        url.set_query(Some(query));
        self.begin(method, url)
    }

    fn begin(&self, method: Method, url: Url) -> RequestBuilder {
        let request = self.http.request(method, url);
        match self.traceparent {
            Some(traceparent) => request.header("traceparent", traceparent.to_string()),
            None => request,
        }
    }

    /// Sends an archive, for an answer that is read piece by piece.
    pub async fn post_upload(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: Body,
    ) -> Result<Response, Error> {
        let request = self.request(Method::POST, path).query(query).body(body);
        let request = request.header(CONTENT_TYPE, "application/x-tar");
        self.send(request.header("accept", "application/x-ndjson")).await
    }

    /// Starts a request whose answer is read piece by piece.
    pub async fn post_live(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<Response, Error> {
        let request = self.request(Method::POST, path).json(body);
        self.send(request.header("accept", "application/x-ndjson")).await
    }

    /// Sends bytes unchanged.
    pub async fn post_bytes(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Result<(), Error> {
        let request = self.request(Method::POST, path).query(query).body(body);
        self.send(request.header(CONTENT_TYPE, "application/octet-stream")).await.map(drop)
    }

    /// Sends an archive as it is read.
    pub async fn post_archive<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Body,
    ) -> Result<T, Error> {
        let request = self.request(Method::POST, path).body(body);
        self.json(request.header(CONTENT_TYPE, "application/octet-stream")).await
    }

    /// Starts reading an answer piece by piece.
    pub async fn get_live(
        &self,
        path: &str,
        query: &(impl Serialize + ?Sized),
    ) -> Result<Response, Error> {
        let request = self.request(Method::GET, path).query(query);
        self.send(request.header("accept", "application/x-ndjson")).await
    }

    /// Makes a request that upgrades to a WebSocket.
    pub async fn websocket(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<WebSocket, Error> {
        let key = generate_key();
        let request = self.request(Method::GET, path).query(query);
        let request = request.header(CONNECTION, "Upgrade").header(UPGRADE, "websocket");
        let request = request.header(SEC_WEBSOCKET_VERSION, "13").header(SEC_WEBSOCKET_KEY, &key);
        let response = request.send().await.map_err(|e| self.unreachable(e))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.problem(response).await);
        }
        let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT);
        if accepted.is_none_or(|accepted| *accepted != *derive_accept_key(key.as_bytes())) {
            return Err(self.not_sandkeep("it accepts another WebSocket"));
        }
        let upgraded = response.upgrade().await.map_err(|e| self.unreachable(e))?;
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await)
    }

    /// Parses a type from a raw answer.
    pub fn read<T: DeserializeOwned>(&self, answer: Value) -> Result<T, Error> {
        serde_json::from_value(answer).map_err(|e| self.not_sandkeep(e))
    }

    pub fn not_sandkeep(&self, what: impl Display) -> Error {
        Error::NotSandkeep { url: self.base.to_string(), what: what.to_string() }
    }

    pub fn went_away(&self) -> Error {
        Error::WentAway { url: self.base.to_string() }
    }

    pub fn broke_off(&self, source: reqwest::Error) -> Error {
        Error::BrokeOff { url: self.base.to_string(), source }
    }

    fn unreachable(&self, source: reqwest::Error) -> Error {
        Error::Unreachable { url: self.base.to_string(), source }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut url = self.base.clone();
        url.set_path(path);
        self.begin(method, url)
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Error> {
        let response = self.send(request).await?;
        self.whole(response).await
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        let response = request.send().await.map_err(|e| self.unreachable(e))?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(self.problem(response).await)
        }
    }

    async fn problem(&self, response: Response) -> Error {
        let status = response.status();
        match self.whole(response).await {
            Ok(problem) => Error::Refused(Box::new(problem)),
            Err(_) => self.not_sandkeep(format!("it answers {status}")),
        }
    }

    async fn whole<T: DeserializeOwned>(&self, response: Response) -> Result<T, Error> {
        let body = self.bytes(response).await?;
        serde_json::from_slice(&body).map_err(|e| self.not_sandkeep(e))
    }

    /// Reads an answer to its end, within limits.
    pub(crate) async fn bytes(&self, mut response: Response) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|e| self.not_sandkeep(e))? {
            body.extend_from_slice(&piece);
            if body.len() > CLIENT_ANSWER_MAX_BYTES {
                return Err(self.not_sandkeep("its answer has no end"));
            }
        }
        Ok(body)
    }
}
