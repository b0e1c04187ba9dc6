//! The door: decides for every request who makes it and whether that may be done.
//!
//! ```text
//!           Local                              Keys
//! peer      the daemon's own user              anybody
//! Host      this machine's loopback            any
//! Origin    ours, or invited                   ours, or invited; others only off loopback
//! who       the local user                     a key or a token, but for PUBLIC
//! scope     read to look, write for the rest; a handler may ask for more (see `who::Admin`)
//! ```
//!
//! All of it is decided here and for all paths alike, so that a new endpoint is guarded before anybody
//! thinks of it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio_util::sync::CancellationToken;

use super::docs_page;
use super::leash::Leash;
use super::origins::{Origins, Page, Reach, check_host};
use super::problem::Refusal;
use crate::auth::{Auth, AuthError, Lease, Mode, Recognized};
use sandkeep_core::{Principal, Scope};

/// What is answered to everybody, credential or not. `/readyz` tells more to those who have one.
const PUBLIC: &[&str] =
    &["/healthz", "/readyz", "/docs", docs_page::STYLE, docs_page::SCRIPT, "/openapi.json"];

const API_KEY: &str = "x-api-key";
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"sandkeep\"");

/// The connection that a request came over.
#[derive(Clone, Debug)]
pub struct Connection {
    pub peer: Peer,
    /// Where the other end is, if that can be told.
    pub client: Option<IpAddr>,
    /// Cuts the connection off.
    pub cut: CancellationToken,
    /// Resolves when the connection is over.
    pub over: CancellationToken,
}

/// Whose the other end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The user who runs the daemon.
    Own,
    /// Another one, or one that cannot be told.
    Foreign { uid: Option<u32> },
}

pub struct Door {
    pub auth: Arc<Auth>,
    pub origins: Origins,
    pub reach: Reach,
}

/// What becomes of a request.
pub enum Admitted {
    Served(Visit),
    /// There is nothing to do for it but this.
    Answered(Response),
}

/// A request that was let in, until its answer is out.
pub struct Visit {
    page: Page,
    leash: Option<Leash>,
}

/// A refusal, and the page that may read it.
pub struct Refused {
    page: Page,
    refusal: Refusal,
}

impl Door {
    pub async fn admit(&self, request: &mut Request) -> Result<Admitted, Refused> {
        let mode = self.auth.mode();
        let unread = |refusal| Refused { page: Page::Foreign, refusal };
        let connection = self.check_way(request, mode).map_err(unread)?;
        let page = self.origins.check(request.headers(), mode, self.reach).map_err(unread)?;
        if let Some(answer) = page.preflight(request.method(), request.headers()) {
            return Ok(Admitted::Answered(answer));
        }
        let asked = Asked::of(request);
        match self.recognize(asked, mode).await {
            Ok(None) => Ok(Admitted::Served(Visit { page, leash: None })),
            Ok(Some(Recognized { principal, lease })) => {
                request.extensions_mut().insert(principal);
                let leash = Leash::new(Arc::clone(&self.auth), lease, connection);
                Ok(Admitted::Served(Visit { page, leash }))
            }
            Err(refusal) => Err(Refused { page, refusal }),
        }
    }

    /// In local mode, whose machine and user a request comes from is its credential.
    fn check_way(&self, request: &Request, mode: Mode) -> Result<Connection, Refusal> {
        let connection = request.extensions().get::<Connection>().cloned();
        let connection = connection.ok_or(Refusal::ForeignPeer { uid: None })?;
        match (mode, connection.peer) {
            (Mode::Keys, _) => Ok(connection),
            (Mode::Local, Peer::Foreign { uid }) => Err(Refusal::ForeignPeer { uid }),
            (Mode::Local, Peer::Own) => {
                check_host(request.headers(), request.uri()).map(|()| connection)
            }
        }
    }

    /// Who makes a request, if that may be made by them; `None` is somebody unknown, where everybody
    /// is answered.
    async fn recognize(&self, asked: Asked, mode: Mode) -> Result<Option<Recognized>, Refusal> {
        if mode == Mode::Local {
            let principal = Principal::local();
            return Ok(Some(Recognized { principal, lease: Lease::Unbound }));
        }
        let known = match asked.credential {
            Ok(credential) => self.auth.recognize(&credential).await.map_err(Refusal::from),
            Err(refusal) => Err(refusal),
        };
        match (known, asked.needs) {
            (Ok(known), Needs::Nothing) => Ok(Some(known)),
            (Err(_), Needs::Nothing) => Ok(None),
            (Ok(known), Needs::Scope(needed)) => match known.principal.scopes.allow(needed) {
                true => Ok(Some(known)),
                false => Err(Refusal::Forbidden { needed }),
            },
            (Err(refusal), Needs::Scope(_)) => Err(refusal),
        }
    }
}

/// Who comes to a port of a sandbox, before it is known who that is.
pub struct Caller {
    connection: Option<Connection>,
    asked: Asked,
}

impl Caller {
    pub fn of(request: &Request) -> Self {
        let needs = Needs::Scope(Needs::scope(request));
        let asked = Asked { credential: credential(request.headers()), needs };
        Self { connection: request.extensions().get::<Connection>().cloned(), asked }
    }
}

/// One who may come to ports.
pub struct Known {
    pub principal: Principal,
    pub by: Credential,
    leash: Option<Leash>,
}

/// By what somebody is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Their socket, which every page in their browser has too.
    Socket,
    /// A key or a token, which they sent themselves.
    Sent,
}

impl Known {
    /// Ends an answer that goes on when the key does not hold any more.
    pub fn hold(self, answer: Response) -> Response {
        match self.leash {
            Some(leash) if is_live(&answer) => leash.hold(answer),
            Some(_) | None => answer,
        }
    }
}

impl Door {
    /// Who comes to a port: as for the API, but for `Host` and `Origin`, which mean something else there.
    pub async fn recognize_caller(&self, caller: Caller) -> Result<Known, Refusal> {
        let mode = self.auth.mode();
        let Some(connection) = caller.connection else {
            return Err(Refusal::ForeignPeer { uid: None });
        };
        let by = match (mode, connection.peer) {
            (Mode::Local, Peer::Foreign { uid }) => return Err(Refusal::ForeignPeer { uid }),
            (Mode::Local, Peer::Own) => Credential::Socket,
            (Mode::Keys, _) => Credential::Sent,
        };
        let nobody = || Refusal::Unauthenticated { problem: "nobody is known".to_owned() };
        let known = self.recognize(caller.asked, mode).await?;
        let Recognized { principal, lease } = known.ok_or_else(nobody)?;
        let leash = Leash::new(Arc::clone(&self.auth), lease, connection);
        Ok(Known { principal, by, leash })
    }
}

/// What a request brings and what it needs.
struct Asked {
    credential: Result<String, Refusal>,
    needs: Needs,
}

enum Needs {
    Nothing,
    Scope(Scope),
}

impl Asked {
    fn of(request: &Request) -> Self {
        Self { credential: credential(request.headers()), needs: Needs::of(request) }
    }
}

impl Needs {
    fn of(request: &Request) -> Self {
        match Self::scope(request) {
            Scope::Read if PUBLIC.contains(&request.uri().path()) => Self::Nothing,
            scope => Self::Scope(scope),
        }
    }

    /// Looking needs less than doing. A connection that becomes another protocol, as a terminal does,
    /// is opened by looking and is doing all the same.
    fn scope(request: &Request) -> Scope {
        let looks = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        match looks && !request.headers().contains_key(header::UPGRADE) {
            true => Scope::Read,
            false => Scope::Write,
        }
    }
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Refused { problem } => Self::Unauthenticated { problem },
            AuthError::Unavailable { problem } => Self::AuthUnavailable { problem },
        }
    }
}

impl Visit {
    /// The last touch to an answer: who may read it, and for how long.
    pub fn finish(self, mut answer: Response) -> Response {
        self.page.mark(&mut answer);
        challenge(&mut answer);
        match self.leash {
            Some(leash) if is_live(&answer) => leash.hold(answer),
            Some(_) | None => answer,
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut answer = self.refusal.into_response();
        self.page.mark(&mut answer);
        challenge(&mut answer);
        answer
    }
}

/// HTTP wants every 401 to say what would be accepted.
pub fn challenge(answer: &mut Response) {
    if answer.status() == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, CHALLENGE);
    }
}

/// Whether an answer goes on after it was given: a stream, or another protocol.
fn is_live(answer: &Response) -> bool {
    answer.status() == StatusCode::SWITCHING_PROTOCOLS
        || answer.body().size_hint().exact().is_none()
}

/// The one credential of a request. Two that differ are refused: somebody on the way to us may have
/// looked at the other one.
fn credential(headers: &HeaderMap) -> Result<String, Refusal> {
    let refused = |problem: &str| Refusal::Unauthenticated { problem: problem.to_owned() };
    let mut found: Option<&str> = None;
    let bearers = headers.get_all(header::AUTHORIZATION).iter().map(|value| (value, true));
    let plain = headers.get_all(API_KEY).iter().map(|value| (value, false));
    for (value, is_bearer) in bearers.chain(plain) {
        let text = value.to_str().map_err(|_| refused("the credential is not text"))?;
        let text = match is_bearer {
            true => bearer(text).ok_or_else(|| refused("Authorization is not `Bearer KEY`"))?,
            false => text.trim(),
        };
        if found.is_some_and(|other| other != text) {
            return Err(refused("the request has two credentials, and they differ"));
        }
        found = Some(text);
    }
    match found {
        Some(text) => Ok(text.to_owned()),
        None => Err(refused("the request has no credential")),
    }
}

/// What follows `Bearer`, whose case does not matter.
fn bearer(text: &str) -> Option<&str> {
    let (scheme, rest) = text.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(rest.trim())
}
