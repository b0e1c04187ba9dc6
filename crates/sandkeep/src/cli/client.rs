//! The CLI's side of the REST API.

use std::ffi::OsStr;
use std::path::Path;

use reqwest::header::{
    AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use reqwest::{Certificate, Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::cli::failure::Failure;
use crate::cli::filter::Filter;
use sandkeep_core::{
    ExecId, SandboxId, ShellId,
    limits::{CONNECT, PAGE_MAX},
};
use sandkeep_doors::{mcp::ACCEPTED, rest::Problem};

/// How much of an id must be given.
const PREFIX_MIN_LEN: usize = 4;

pub struct Client {
    base: Url,
    http: reqwest::Client,
}

/// A connection that carries messages both ways.
pub type WebSocket = WebSocketStream<reqwest::Upgraded>;

/// A key of the API. Nothing shows it.
pub struct ApiKey(HeaderValue);

impl ApiKey {
    pub const VARIABLE: &str = "SANDKEEP_API_KEY";

    pub fn new(text: &OsStr) -> Result<Self, Failure> {
        let value =
            text.to_str().map(|text| HeaderValue::from_str(&format!("Bearer {}", text.trim())));
        let Some(Ok(mut value)) = value else {
            let problem = format!("{}: it holds something that no key has", Self::VARIABLE);
            return Err(Failure::Usage { problem });
        };
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

/// What the CLI shows of a sandbox; the rest of the answer is for `--json`.
#[derive(Debug, Deserialize)]
pub struct Sandbox {
    pub id: SandboxId,
    pub state: String,
    pub operation: Option<String>,
    pub reason: Option<String>,
    pub runtime: String,
    pub template: String,
    pub slot: Option<String>,
    pub created_at: String,
}

impl Sandbox {
    /// The state, what is under way, and why, in a few words.
    pub fn condition(&self) -> String {
        let mut text = self.state.clone();
        if let Some(operation) = &self.operation {
            text = format!("{text} ({operation} under way)");
        }
        match &self.reason {
            Some(reason) => format!("{text}: {reason}"),
            None => text,
        }
    }
}

impl Client {
    /// `authority` is a file with certificates to trust, for a daemon with one of its own making.
    pub fn new(base: &Url, key: Option<ApiKey>, authority: Option<&Path>) -> Result<Self, Failure> {
        let headers: HeaderMap =
            key.map(|ApiKey(value)| (AUTHORIZATION, value)).into_iter().collect();
        // A proxy from the environment is for the outside world, not for a daemon on loopback.
        let builder = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT);
        let builder = builder.default_headers(headers);
        let builder = match (authority, base.scheme()) {
            (Some(file), _) => builder.tls_certs_only(certificates(file)?),
            // Nobody needs to be vouched for, so the machine's own certificates need not be read.
            (None, "http") => builder.tls_certs_only([]),
            (None, _) => builder,
        };
        let http = builder.build();
        let http = http.map_err(|source| Failure::Unreachable { url: base.to_string(), source })?;
        Ok(Self { base: base.clone(), http })
    }

    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.json(self.request(Method::GET, path)).await
    }

    pub async fn get_query(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        self.json(self.request(Method::GET, path).query(query)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.json(self.request(Method::POST, path).json(body)).await
    }

    pub async fn post_query(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<Value, Failure> {
        self.json(self.request(Method::POST, path).query(query).json(body)).await
    }

    pub async fn delete(&self, path: &str) -> Result<(), Failure> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    pub async fn delete_query(&self, path: &str, query: &[(&str, &str)]) -> Result<(), Failure> {
        self.send(self.request(Method::DELETE, path).query(query)).await.map(drop)
    }

    /// Sends bytes as they are, for an answer that is read piece by piece.
    pub async fn put_live(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: reqwest::Body,
    ) -> Result<Response, Failure> {
        let request = self.request(Method::PUT, path).query(query).body(body);
        let request = request.header(CONTENT_TYPE, "application/octet-stream");
        self.send(request.header("accept", "application/x-ndjson")).await
    }

    /// Reads bytes as they are. The query is as it is sent: what it names need not be text.
    pub async fn get_bytes(&self, path: &str, query: &str) -> Result<Response, Failure> {
        self.send(self.request_raw(Method::GET, path, query)).await
    }

    /// The same for an answer that is JSON.
    pub async fn get_raw(&self, path: &str, query: &str) -> Result<Value, Failure> {
        self.json(self.request_raw(Method::GET, path, query)).await
    }

    /// Sends bytes as they are, with such a query.
    pub async fn put_bytes(
        &self,
        path: &str,
        query: &str,
        body: reqwest::Body,
    ) -> Result<Value, Failure> {
        let request = self.request_raw(Method::PUT, path, query).body(body);
        self.json(request.header(CONTENT_TYPE, "application/octet-stream")).await
    }

    fn request_raw(&self, method: Method, path: &str, query: &str) -> RequestBuilder {
        let mut url = self.base.clone();
        url.set_path(path);
        url.set_query(Some(query));
        self.http.request(method, url)
    }

    /// The same by POST, of an archive.
    pub async fn post_upload(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: reqwest::Body,
    ) -> Result<Response, Failure> {
        let request = self.request(Method::POST, path).query(query).body(body);
        let request = request.header(CONTENT_TYPE, "application/x-tar");
        self.send(request.header("accept", "application/x-ndjson")).await
    }

    /// Starts a request whose answer is read piece by piece.
    pub async fn post_live(&self, path: &str, body: &Value) -> Result<Response, Failure> {
        let request = self.request(Method::POST, path).json(body);
        self.send(request.header("accept", "application/x-ndjson")).await
    }

    /// A request that is answered with nothing but success.
    pub async fn tell(&self, path: &str, body: &Value) -> Result<(), Failure> {
        self.send(self.request(Method::POST, path).json(body)).await.map(drop)
    }

    /// Sends bytes as they are.
    pub async fn post_bytes(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Result<(), Failure> {
        let request = self.request(Method::POST, path).query(query).body(body);
        self.send(request.header(CONTENT_TYPE, "application/octet-stream")).await.map(drop)
    }

    /// Sends an archive as it is read.
    pub async fn post_archive(&self, path: &str, body: reqwest::Body) -> Result<Value, Failure> {
        let request = self.request(Method::POST, path).body(body);
        self.json(request.header(CONTENT_TYPE, "application/octet-stream")).await
    }

    /// Starts to read something piece by piece.
    pub async fn get_live(&self, path: &str, query: &[(&str, &str)]) -> Result<Response, Failure> {
        let request = self.request(Method::GET, path).query(query);
        self.send(request.header("accept", "application/x-ndjson")).await
    }

    /// Makes a request as it is, for an answer as it comes. `path` is encoded, with its query.
    pub async fn relay(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Response, Failure> {
        let url = self.base.join(path).map_err(|e| Failure::Usage { problem: e.to_string() })?;
        let request = self.http.request(method, url).header("accept", ACCEPTED);
        let request = match body {
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(body),
            None => request,
        };
        request.send().await.map_err(|e| self.broken(e))
    }

    /// All execs of a sandbox, as the daemon wrote them.
    pub async fn execs(&self, sandbox: &SandboxId) -> Result<Vec<Value>, Failure> {
        let path = format!("/api/v1/sandboxes/{sandbox}/execs");
        let mut found = Vec::new();
        let mut query = vec![("limit", PAGE_MAX.to_string())];
        loop {
            let mut answer = self.json(self.request(Method::GET, &path).query(&query)).await?;
            let Value::Array(items) = answer["items"].take() else {
                return Err(self.not_sandkeep("a list without items".to_owned()));
            };
            found.extend(items);
            let Some(cursor) = answer["next_cursor"].as_str() else { return Ok(found) };
            query.truncate(1);
            query.push(("cursor", cursor.to_owned()));
        }
    }

    /// The full id of an exec for an id or the beginning of one.
    pub async fn resolve_exec(&self, sandbox: &SandboxId, text: &str) -> Result<ExecId, Failure> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let execs = self.execs(sandbox).await?;
        let ids = execs.iter().filter_map(|exec| exec["exec_id"].as_str()?.parse().ok());
        let ids = ids.filter(|id: &ExecId| id.as_str().starts_with(text));
        only_one("exec", sandbox, text, ids.collect())
    }

    /// The full id of a shell for an id or the beginning of one.
    pub async fn resolve_shell(&self, sandbox: &SandboxId, text: &str) -> Result<ShellId, Failure> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let shells = self.get(&format!("/api/v1/sandboxes/{sandbox}/shells")).await?;
        let shells = shells["items"].as_array().into_iter().flatten();
        let ids = shells.filter_map(|shell| shell["id"].as_str()?.parse().ok());
        let ids = ids.filter(|id: &ShellId| id.as_str().starts_with(text));
        only_one("shell", sandbox, text, ids.collect())
    }

    /// Makes a request that becomes a WebSocket.
    pub async fn websocket(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<WebSocket, Failure> {
        let key = generate_key();
        let request = self.request(Method::GET, path).query(query);
        let request = request.header(CONNECTION, "Upgrade").header(UPGRADE, "websocket");
        let request = request.header(SEC_WEBSOCKET_VERSION, "13").header(SEC_WEBSOCKET_KEY, &key);
        let response = request.send().await.map_err(|e| self.broken(e))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.problem(response.status(), response).await);
        }
        let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT);
        if accepted.is_none_or(|accepted| *accepted != *derive_accept_key(key.as_bytes())) {
            return Err(self.not_sandkeep("it accepts another WebSocket".to_owned()));
        }
        let upgraded = response.upgrade().await.map_err(|e| self.broken(e))?;
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await)
    }

    /// The full id for an id or the beginning of one.
    pub async fn resolve(&self, text: &str) -> Result<SandboxId, Failure> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        // An empty variable in somebody's script must not name the one sandbox that there is.
        if !text.starts_with(SandboxId::PREFIX) || text.len() < PREFIX_MIN_LEN {
            let problem = format!(
                "{text:?} is neither an id nor the first {PREFIX_MIN_LEN} or more characters of one"
            );
            return Err(Failure::Usage { problem });
        }
        let ids = self
            .sandboxes(&Filter::default(), None)
            .await?
            .into_iter()
            .map(|(sandbox, _)| sandbox.id);
        pick(text, ids.filter(|id| id.as_str().starts_with(text)).collect())
    }

    /// The sandboxes that a filter leaves, page by page, each also as the daemon wrote it.
    pub async fn sandboxes(
        &self,
        filter: &Filter,
        limit: Option<usize>,
    ) -> Result<Vec<(Sandbox, Value)>, Failure> {
        let limit = limit.unwrap_or(usize::MAX);
        let mut found = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut query = filter.query();
            let page = PAGE_MAX.min(limit - found.len());
            query.push(("limit", page.to_string()));
            query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let request = self.request(Method::GET, "/api/v1/sandboxes").query(&query);
            let mut answer = self.json(request).await?;
            let Value::Array(items) = answer["items"].take() else {
                return Err(self.not_sandkeep("a list without items".to_owned()));
            };
            for item in items.into_iter().take(page) {
                found.push((self.sandbox(&item)?, item));
            }
            cursor = answer["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || found.len() >= limit {
                return Ok(found);
            }
        }
    }

    pub fn sandbox(&self, value: &Value) -> Result<Sandbox, Failure> {
        Sandbox::deserialize(value).map_err(|e| self.not_sandkeep(e.to_string()))
    }

    pub fn not_sandkeep(&self, what: String) -> Failure {
        Failure::NotSandkeep { url: self.base.to_string(), what }
    }

    pub fn went_away(&self) -> Failure {
        Failure::WentAway { url: self.base.to_string() }
    }

    pub fn broke_off(&self, source: reqwest::Error) -> Failure {
        Failure::BrokeOff { url: self.base.to_string(), source }
    }

    fn broken(&self, source: reqwest::Error) -> Failure {
        Failure::Unreachable { url: self.base.to_string(), source }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut url = self.base.clone();
        url.set_path(path);
        self.http.request(method, url)
    }

    async fn json(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let response = self.send(request).await?;
        response.json().await.map_err(|e| self.not_sandkeep(e.to_string()))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|e| self.broken(e))?;
        let status = response.status();
        if status.is_success() { Ok(response) } else { Err(self.problem(status, response).await) }
    }

    async fn problem(&self, status: StatusCode, response: Response) -> Failure {
        match response.json::<Problem>().await {
            Ok(problem) => Failure::Refused(Box::new(problem)),
            Err(_) => self.not_sandkeep(format!("it answers {status}")),
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<Certificate>, Failure> {
    let unusable =
        |what: String| Failure::Usage { problem: format!("--ca-file {}: {what}", file.display()) };
    let pem = std::fs::read(file).map_err(|e| unusable(e.to_string()))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) | Err(_) => Err(unusable("it holds no certificates in PEM".to_owned())),
    }
}

/// What in a sandbox has an id that begins so.
fn only_one<T>(
    kind: &str,
    sandbox: &SandboxId,
    text: &str,
    mut matches: Vec<T>,
) -> Result<T, Failure> {
    match (text.len() >= PREFIX_MIN_LEN, matches.len()) {
        (true, 1) => Ok(matches.remove(0)),
        (true, many) if many > 1 => {
            let problem = format!("{many} {kind}s have an id that begins with {text:?}");
            Err(Failure::Usage { problem })
        }
        _ => {
            let problem = format!("no {kind} of {sandbox} has an id that begins with {text:?}");
            Err(Failure::Usage { problem })
        }
    }
}

fn pick(prefix: &str, mut matches: Vec<SandboxId>) -> Result<SandboxId, Failure> {
    match matches.len() {
        0 => Err(Failure::NoMatch { prefix: prefix.to_owned() }),
        1 => Ok(matches.remove(0)),
        _ => Err(Failure::Ambiguous {
            prefix: prefix.to_owned(),
            matches: matches.into_iter().map(String::from).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_accepted_only_when_it_names_one_sandbox() {
        let (one, two) = (SandboxId::random(), SandboxId::random());
        assert!(matches!(pick("sb", vec![]), Err(Failure::NoMatch { .. })));
        assert_eq!(pick("sb", vec![one.clone()]).ok(), Some(one.clone()));
        assert!(matches!(pick("sb", vec![one, two]), Err(Failure::Ambiguous { .. })));
    }
}
