//! Authenticates requests for ports, on either of the two routes to a port.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::forward::{Forwarded, forward};
use super::headers::{clean_host_answer, clean_path_answer, prefix_location, take_cookie};
use super::host::{Addressed, PortHost, addressed};
use super::page::{RefusalFormat, wants_page};
use super::token;
use crate::auth::Mode;
use crate::kit::audit::{Slip, client_of};
use crate::kit::credential::{OURS, challenge};
use crate::kit::{By, Caller, Gate, Known, Pass, Refusal, SignedBy, in_words};
use sandkeep_audit::{AuditLog, Effect, Request as Record};
use sandkeep_broker::{Broker, PortTokenProblem, PortView, Warrant};
use sandkeep_core::api::{PortInfo, PortListener, PortUrl, Ports, SignPortUrl};
use sandkeep_core::{Port, Principal, SandboxId};

/// Serves all ports of all sandboxes.
pub struct PortDoor {
    pub broker: Broker,
    /// Authenticates callers, as for the API.
    pub gate: Arc<Gate>,
    /// The domain suffix of the ports' host names.
    pub domain: String,
    pub proto: &'static str,
}

/// How a request for a port was authenticated.
enum Visitor {
    Known(Known),
    /// With a port token in the URL.
    PortToken(Pass),
    /// With a port token in the cookie.
    Cookie(Pass),
}

impl Visitor {
    fn warrant(&self) -> Warrant<'_> {
        match self {
            Self::Known(known) => Warrant::Principal(&known.principal),
            Self::PortToken(_) | Self::Cookie(_) => Warrant::PortToken,
        }
    }

    fn hold(self, answer: Response) -> Response {
        match self {
            Self::Known(known) => known.hold(answer),
            Self::PortToken(pass) | Self::Cookie(pass) => pass.hold(answer),
        }
    }
}

/// The outermost layer: intercepts requests that are addressed to a port.
pub async fn by_host(State(door): State<Arc<PortDoor>>, request: Request, next: Next) -> Response {
    match addressed(request.headers(), request.uri(), &door.domain) {
        Addressed::Elsewhere => next.run(request).await,
        Addressed::Port(host) => door.serve(&host, request).await,
        Addressed::Unclear { host } => {
            let path = request.uri().path().to_owned();
            in_words(&RefusalFormat::Problem, Refusal::ForeignHost { host }.into_response(), &path)
        }
    }
}

impl PortDoor {
    /// Only the user who needs no key may open raw sockets on the host.
    pub fn require_local(&self) -> Result<(), Refusal> {
        match self.gate.auth.mode() {
            Mode::Local => Ok(()),
            Mode::Keys => Err(Refusal::LocalOnly),
        }
    }

    /// The host name of a port, based on how the client reaches the API.
    pub fn host(&self, sandbox: &SandboxId, port: Port, headers: &HeaderMap) -> PortHost {
        PortHost::of(sandbox, port, &self.domain, host_of(headers))
    }

    pub fn url(&self, sandbox: &SandboxId, port: Port, headers: &HeaderMap) -> String {
        let PortHost { authority, .. } = self.host(sandbox, port, headers);
        format!("{}://{authority}/", self.proto)
    }

    /// The ports of a sandbox, with their URLs.
    pub async fn list(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        headers: &HeaderMap,
    ) -> Result<Ports, Refusal> {
        let shown = |PortView { port, open, address }| {
            let url = self.url(sandbox, port, headers);
            PortInfo { port, open, url, address }
        };
        let items = self.broker.ports(who, sandbox).await?.into_iter().map(shown).collect();
        let base = PortHost::base(sandbox, &self.domain, host_of(headers));
        Ok(Ports { items, url_template: format!("{}://{{port}}-{base}/", self.proto) })
    }

    /// A URL that gives anybody access to a port, for as long as the key that signed it is valid.
    pub fn sign(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        port: Port,
        asked: SignPortUrl,
        headers: &HeaderMap,
        SignedBy(key): &SignedBy,
    ) -> Result<PortUrl, Refusal> {
        let holds = asked.expires_secs.map(Duration::from_secs);
        let signed = self.broker.sign_port_token(who, sandbox, port, holds, key.as_ref())?;
        let url = self.url(sandbox, port, headers);
        let url = format!("{url}?{}={}", token::PARAMETER, signed.token);
        Ok(PortUrl { url, expires_at: signed.expires_at.to_string() })
    }

    /// Opens a raw socket on the host that forwards to a port.
    pub async fn listen(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        port: Port,
    ) -> Result<PortListener, Refusal> {
        // For other callers the sandbox does not exist; the broker checks that first.
        self.broker.require(who, sandbox)?;
        self.require_local()?;
        let address = self.broker.listen(who, sandbox, port).await?;
        Ok(PortListener { port, address })
    }

    /// A request to the host of a port.
    async fn serve(&self, host: &PortHost, request: Request) -> Response {
        let path = request.uri().path().to_owned();
        let words = RefusalFormat::for_whom(request.headers());
        let span = tracing::debug_span!("port", sandbox = %host.sandbox, port = %host.port);
        let slip = self.broker.audit().map(|log| slip(log, host, &request));
        let answer = tracing::Instrument::instrument(self.answer(host, request), span).await;
        let is_refused = answer.is_err();
        let mut answer = answer.into_response();
        if let Some(slip) = slip {
            answer = slip.settle(answer);
        }
        if is_refused {
            answer = in_words(&words, answer, &path);
            challenge(&mut answer, OURS);
        }
        answer
    }

    async fn answer(&self, host: &PortHost, mut request: Request) -> Result<Response, Refusal> {
        if *request.method() == Method::CONNECT {
            let path = request.uri().path().to_owned();
            return Err(Refusal::NoMethod { method: Method::CONNECT, path });
        }
        let (target, token) = token::take(request.uri());
        let [plain, tls] = token::COOKIES.map(|name| take_cookie(request.headers_mut(), name));
        let cookies = if self.proto == "https" { tls } else { plain };
        let visitor = match token {
            Some(token) => {
                let PortHost { sandbox, port, .. } = host;
                let pass = self.broker.check_port_token(sandbox, *port, &token)?;
                let expires_at = pass.expires_at;
                let pass = self.gate.recognize_pass(&Caller::of(&request), pass, sandbox).await?;
                if *request.method() == Method::GET && wants_page(request.headers()) {
                    let cookie = token::cookie(&token, expires_at, self.proto);
                    return Ok(self.exchange(host, &target, &cookie));
                }
                Visitor::PortToken(pass)
            }
            None => self.recognize(host, Caller::of(&request), &cookies).await?,
        };
        self.refuse_strange_pages(host, &visitor, request.headers())?;
        let forwarded = Forwarded {
            client: client_of(&request),
            host: host.authority.clone(),
            proto: self.proto,
            prefix: None,
        };
        let stream = self.broker.dial(visitor.warrant(), &host.sandbox, host.port).await?;
        let mut answer = forward(stream, request, target, &host.authority, &forwarded).await?;
        clean_host_answer(answer.headers_mut(), &token::COOKIES);
        Ok(visitor.hold(answer))
    }

    /// Redirects the browser to the same address without the token, and sets the token as a cookie. The address can
    /// then be displayed, kept in the history and shared.
    fn exchange(&self, host: &PortHost, target: &PathAndQuery, cookie: &str) -> Response {
        let location = format!("{}://{}{target}", self.proto, host.authority);
        let headers = [
            (header::LOCATION, location.as_str()),
            (header::SET_COOKIE, cookie),
            (header::CACHE_CONTROL, "no-store"),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        (StatusCode::SEE_OTHER, headers).into_response()
    }

    /// Authenticates a request without a port token in the URL.
    async fn recognize(
        &self,
        host: &PortHost,
        caller: Caller,
        cookies: &[String],
    ) -> Result<Visitor, Refusal> {
        // A page of another sandbox can set cookies beside ours; one valid token is enough.
        let mut over = None;
        for cookie in cookies {
            match self.broker.check_port_token(&host.sandbox, host.port, cookie) {
                Ok(pass) => match self.gate.recognize_pass(&caller, pass, &host.sandbox).await {
                    Ok(pass) => return Ok(Visitor::Cookie(pass)),
                    Err(refusal) => over = Some(refusal),
                },
                Err(PortTokenProblem::Forged) => {}
                Err(problem) => over = Some(problem.into()),
            }
        }
        match (self.gate.recognize_caller(caller).await, over) {
            (Ok(known), _) => Ok(Visitor::Known(known)),
            (Err(_), Some(over)) => Err(over),
            (Err(refusal), None) => Err(refusal),
        }
    }

    /// Credentials that a browser attaches by itself (the user's socket, a cookie) must not be usable by foreign pages.
    /// A page of the same sandbox on another port is allowed, because front ends call their servers that way.
    fn refuse_strange_pages(
        &self,
        host: &PortHost,
        visitor: &Visitor,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        match visitor {
            Visitor::Known(Known { by: By::Sent, .. }) | Visitor::PortToken(_) => return Ok(()),
            Visitor::Known(Known { by: By::Socket, .. }) | Visitor::Cookie(_) => {}
        }
        for origin in headers.get_all(header::ORIGIN) {
            let origin = String::from_utf8_lossy(origin.as_bytes()).to_ascii_lowercase();
            if !host.is_kin(&origin, &self.domain) {
                return Err(Refusal::ForeignOrigin { origin });
            }
        }
        Ok(())
    }

    /// A request to a port by its path on the API, which the gate has authorized. `prefix` is the path up to the port.
    pub async fn by_path(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        port: Port,
        prefix: String,
        mut request: Request,
    ) -> Result<Response, Refusal> {
        let headers = request.headers();
        if headers.get("service-worker").is_some_and(|value| value == "script") {
            return Err(Refusal::ServiceWorker);
        }
        let target = without_prefix(&request, &prefix)?;
        let host = self.host(sandbox, port, headers);
        if is_navigation(headers) {
            let location = format!("{}://{}{target}", self.proto, host.authority);
            return Ok(redirect(&location));
        }
        request.headers_mut().remove(header::COOKIE);
        let forwarded = Forwarded {
            client: client_of(&request),
            host: host.authority.clone(),
            proto: self.proto,
            prefix: Some(prefix.clone()),
        };
        let stream = self.broker.dial(Warrant::Principal(who), sandbox, port).await?;
        let mut answer = forward(stream, request, target, &host.authority, &forwarded).await?;
        clean_path_answer(answer.headers_mut());
        prefix_location(answer.headers_mut(), &prefix);
        Ok(answer)
    }
}

/// A request to a server inside counts as a read, whatever its method: it changes nothing of ours.
fn slip(log: &Arc<AuditLog>, host: &PortHost, request: &Request) -> Slip {
    let record = Record {
        door: "ports".to_owned(),
        operation: "use_port".to_owned(),
        method: Some(request.method().as_str().to_owned()),
        address: client_of(request),
        sandbox: Some(host.sandbox.to_string()),
        resource: Some(host.port.to_string()),
        effect: Effect::Reads,
        ..Record::default()
    };
    Slip::new(log, record)
}

fn host_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::HOST).and_then(|host| host.to_str().ok())
}

pub fn redirect(location: &str) -> Response {
    let mut answer = StatusCode::TEMPORARY_REDIRECT.into_response();
    if let Ok(location) = HeaderValue::try_from(location) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}

/// What the server inside sees of a path, byte for byte.
fn without_prefix(request: &Request, prefix: &str) -> Result<PathAndQuery, Refusal> {
    let whole = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let rest = whole.strip_prefix(prefix).unwrap_or("/");
    let target = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
    let no_route = |_| Refusal::NoRoute { path: request.uri().path().to_owned() };
    PathAndQuery::try_from(target).map_err(no_route)
}

/// Whether a browser is about to navigate to the answer. Browsers that do not say so are recognized by `Accept:
/// text/html`.
fn is_navigation(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
    if headers.contains_key("sec-fetch-mode") || headers.contains_key("sec-fetch-dest") {
        is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document")
    } else {
        wants_page(headers)
    }
}
