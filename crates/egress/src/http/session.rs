//! The requests of one connection to one site: each is checked by itself, whatever came before it.

use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header, upgrade};
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional_with_sizes};

use sandkeep_core::limits::{EGRESS_BUFFER_BYTES, EGRESS_LOGGED_PATH_MAX_BYTES};
use sandkeep_core::network::{DecisionKind, NetworkVerdict};

use super::headers::{
    asks_for_websocket, default_port, of_request, origin_form, remove_hop_by_hop, set_websocket,
};
use super::pool::{Pool, SendError};
use super::{Body, TunnelSlot, inject, refusal, requests};
use crate::carry::check_named;
use crate::connection::{Flow, Refusal, Site};
use crate::policy::{Finding, Host, Transport};
use crate::sandbox::Line;
use crate::terminate::{Outside, Version};
use crate::upstream::UpstreamError;

pub(crate) struct Session {
    flow: Flow,
    pub(crate) site: Site,
    transport: Transport,
    pool: Pool,
    /// The server could not be reached before the first request.
    failed: Option<Arc<UpstreamError>>,
    tunnel: TunnelSlot,
}

impl Session {
    pub(crate) fn new(flow: Flow, site: Site, transport: Transport, tunnel: TunnelSlot) -> Self {
        let pool = Pool::new(flow.clone(), site.clone(), transport, Version::Http1);
        Self { flow, site, transport, pool, failed: None, tunnel }
    }

    /// With a connection to the server, or the reason why there is none.
    pub(crate) async fn connected(mut self, version: Version, outside: Outside) -> Self {
        self.pool = Pool::new(self.flow.clone(), self.site.clone(), self.transport, version);
        match outside {
            Ok(outside) => {
                // If it breaks now, the first request makes another one.
                let _ = self.pool.use_connected(Box::new(outside)).await;
            }
            Err(error) => {
                self.flow.failed(&self.site, error.to_string());
                self.failed = Some(Arc::new(error));
            }
        }
        self
    }

    pub(crate) async fn answer(&self, mut request: Request<Incoming>) -> Response<Body> {
        let asks = request.headers().contains_key(header::UPGRADE);
        let inside = asks.then(|| upgrade::on(&mut request));
        let (response, outside) = self.decide(request).await;
        match (inside, outside) {
            (Some(inside), Some(outside)) => self.open_tunnel(inside, outside),
            // It stays as it is. The library closes such a connection without an end of its TLS.
            (Some(inside), None) => self.tunnel.put(Box::pin(async move {
                if let Ok(inside) = inside.await {
                    // The program may be gone.
                    let _ = TokioIo::new(inside).shutdown().await;
                }
            })),
            (None, _) => {}
        }
        response
    }

    /// The answer to a request, and the server's end of what comes after it.
    async fn decide(
        &self,
        request: Request<Incoming>,
    ) -> (Response<Body>, Option<upgrade::OnUpgrade>) {
        let (parts, body) = request.into_parts();
        let shown = (parts.method.to_string(), logged_path(parts.uri.path()));
        if let Err(refusal) = self.check(&parts) {
            let line = self.line(NetworkVerdict::Denied, shown.clone());
            let (rule, reason) = (refusal.rule.clone(), Some(refusal.reason.clone()));
            self.flow.sandbox.record(Line { rule, reason, ..line });
            let to = (&self.site.host, self.site.port);
            refusal::drain(&parts.headers, body).await;
            return (refusal::response(&self.flow, to, &refusal, Some(shown)), None);
        }
        match self.forward(Request::from_parts(parts, body)).await {
            Ok(answered) => {
                self.flow.sandbox.record(self.line(NetworkVerdict::Allowed, shown));
                answered
            }
            Err(error) => {
                let line = self.line(NetworkVerdict::Failed, shown);
                self.flow.sandbox.record(Line { reason: Some(error.to_string()), ..line });
                (refusal::failure(&error.to_string(), StatusCode::BAD_GATEWAY), None)
            }
        }
    }

    fn line(&self, verdict: NetworkVerdict, request: (String, String)) -> Line {
        let line = self.flow.line(DecisionKind::Request, verdict);
        Line { request: Some(request), ..line.to(&self.site.host, self.site.port) }
    }

    /// Whether a request is for this site, and allowed by its rules.
    fn check(&self, request: &Parts) -> Result<(), Refusal> {
        if request.method == Method::CONNECT {
            return Err(Refusal::because("CONNECT is for the proxy only"));
        }
        self.check_site(request)?;
        let rules = self.flow.sandbox.rules();
        let Site { host, port, .. } = &self.site;
        let groups = match rules.find(host, *port) {
            Finding::Allowed(allowed) => allowed.requests,
            Finding::Denied { rule, reason } => {
                return Err(Refusal { rule: Some(rule), reason: reason.to_owned() });
            }
            // The owner allowed it once, or audit lets it pass; a change of the policy cuts it.
            Finding::Unlisted => rules.bound(host, *port),
        };
        requests::check(&groups, request)
    }

    fn check_site(&self, request: &Parts) -> Result<(), Refusal> {
        let Site { host, port, .. } = &self.site;
        if let Some(scheme) = request.uri.scheme_str() {
            let expected = if self.transport == Transport::Tls { "https" } else { "http" };
            if scheme != expected {
                return Err(Refusal::because(format!("its target is {scheme}, not {expected}")));
            }
        }
        let found = of_request(request).map_err(|why| Refusal::because(why.to_string()))?;
        let Some(authority) = found else {
            return match request.version {
                // The server gets the name of the site.
                hyper::Version::HTTP_10 | hyper::Version::HTTP_09 => Ok(()),
                _ => Err(Refusal::because("it does not name its host")),
            };
        };
        if authority.port.unwrap_or(default_port(self.transport)) != *port {
            return Err(Refusal::because(format!("it is for another port than {port}")));
        }
        match (&authority.host, host) {
            (said, host) if said == host => Ok(()),
            (Host::Name(said), Host::Address(_)) => check_named(&self.flow, said, *port),
            (said, host) => {
                Err(Refusal::because(format!("it is for {said}, and its connection for {host}")))
            }
        }
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<(Response<Body>, Option<upgrade::OnUpgrade>), SendError> {
        if let Some(failed) = &self.failed {
            return Err(SendError::Connect(Arc::clone(failed)));
        }
        let wants_websocket = request.version() == hyper::Version::HTTP_11
            && request.method() == Method::GET
            && asks_for_websocket(request.headers());
        if let Err(inject::TooLarge) = self.prepare(&mut request, wants_websocket) {
            let problem = "its headers are too large with the secrets in place".to_owned();
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Ok((refusal::failure(&problem, status), None));
        }
        let mut response = self.pool.send(request).await?;
        let is_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if is_switched && !wants_websocket {
            let problem = "it changed the protocol without being asked".to_owned();
            return Err(SendError::Broken { host: self.site.host.to_string(), problem });
        }
        let outside = is_switched.then(|| upgrade::on(&mut response));
        remove_hop_by_hop(response.headers_mut());
        if is_switched {
            set_websocket(response.headers_mut());
        }
        Ok((response.map(Body::Left), outside))
    }

    /// Makes a request into the one that the server gets.
    fn prepare<B>(
        &self,
        request: &mut Request<B>,
        wants_websocket: bool,
    ) -> Result<(), inject::TooLarge> {
        let is_http2 = request.version() == hyper::Version::HTTP_2;
        let authority = self.authority();
        let headers: &mut HeaderMap = request.headers_mut();
        remove_hop_by_hop(headers);
        // The reader of the body asks for it.
        headers.remove(header::EXPECT);
        if wants_websocket {
            set_websocket(headers);
        }
        if is_http2 {
            headers.remove(header::HOST);
        } else if let Ok(host) = authority.parse() {
            headers.insert(header::HOST, host);
        }
        if let Host::Name(name) = &self.site.host {
            let rules = self.flow.sandbox.rules();
            let port = self.site.port;
            inject::set(headers, rules.headers_for(name, port, self.transport));
            let secrets: Vec<_> = rules.secrets_for(name, port, self.transport).collect();
            inject::inject(headers, secrets.into_iter())?;
        }
        if !is_http2 {
            *request.version_mut() = hyper::Version::HTTP_11;
            if let Some(path) = origin_form(request.uri()) {
                *request.uri_mut() = path;
            }
        }
        Ok(())
    }

    fn authority(&self) -> String {
        let Site { host, port, .. } = &self.site;
        let host = match host {
            Host::Address(std::net::IpAddr::V6(v6)) => format!("[{v6}]"),
            host => host.to_string(),
        };
        if *port == default_port(self.transport) { host } else { format!("{host}:{port}") }
    }

    /// After this answer the connection carries whatever the two say.
    fn open_tunnel(&self, inside: upgrade::OnUpgrade, outside: upgrade::OnUpgrade) {
        self.tunnel.put(Box::pin(async move {
            let (Ok(inside), Ok(outside)) = (inside.await, outside.await) else { return };
            let (mut inside, mut outside) = (TokioIo::new(inside), TokioIo::new(outside));
            let size = EGRESS_BUFFER_BYTES;
            // How it ended is the concern of the two.
            let _ = copy_bidirectional_with_sizes(&mut inside, &mut outside, size, size).await;
        }));
    }
}

fn logged_path(path: &str) -> String {
    path.chars().take(EGRESS_LOGGED_PATH_MAX_BYTES).collect()
}
