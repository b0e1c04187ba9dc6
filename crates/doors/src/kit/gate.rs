//! The gate authenticates and authorizes every request of every door.
//!
//! ```text
//!           Local                              Keys
//! peer      the daemon's own user              any
//! Host      this machine's loopback            any
//! Origin    ours, or allowed                   ours, or allowed; others only off loopback
//! who       the local user                     a key or a token, unless the dialect requires none
//! scope     what the dialect says; a handler may require more (see `who::Admin`)
//! ```

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{StatusCode, Version};
use axum::response::Response;
use tokio_util::sync::CancellationToken;

use super::connection_slots::ConnectionClass;
use super::credential::{self, OURS, Scheme};
use super::dialect::{Dialect, needed_by_method};
use super::origins::{Origins, Page, Reach, check_host};
use super::refusal::Refusal;
use super::stream_lease::StreamLease;
use crate::auth::{Auth, Lease, Mode, Recognized};
use sandkeep_broker::{PortPass, PortTokenProblem};
use sandkeep_core::{HostPaths, KeyId, Principal, SandboxId, Scope};

/// The connection that a request arrived on.
#[derive(Clone, Debug)]
pub struct Connection {
    pub peer: Peer,
    /// The client's address, if known.
    pub client: Option<IpAddr>,
    pub reach: Reach,
    /// Closes the connection.
    pub cut: CancellationToken,
    /// Resolves when the connection is over.
    pub over: CancellationToken,
    /// How this connection counts against the connection limits.
    pub standing: ConnectionClass,
}

/// Which user owns the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The user who runs the daemon.
    Own,
    /// Another user, or an unknown one.
    Foreign { uid: Option<u32> },
    /// The sender of a message, whom only the message server knows. It needs a credential, or somebody who vouches for
    /// it, in either mode.
    Message,
}

/// Who made a request, by the word of the operator's configuration instead of a credential. Requests that come over a
/// connection cannot have it.
#[derive(Clone, Debug)]
pub struct Vouched(pub Principal);

pub struct Gate {
    pub auth: Arc<Auth>,
    pub origins: Origins,
}

/// The gate's decision.
pub enum GateDecision {
    Served(PendingAnswer),
    Refused(PendingAnswer, Refusal),
    /// The gate has already answered the request.
    Answered(Response),
}

/// A request, until its answer is sent.
pub struct PendingAnswer {
    page: Page,
    leash: Option<StreamLease>,
}

impl Gate {
    /// Stores the principal in the request, for [`super::who`].
    pub async fn admit(&self, request: &mut Request, dialect: &dyn Dialect) -> GateDecision {
        let mode = self.mode_for(request.extensions().get());
        let checked = self.check_way(request, mode).and_then(|connection| {
            let page = self.origins.check(request.headers(), mode, connection.reach)?;
            Ok((connection, page))
        });
        let (connection, page) = match checked {
            Ok(checked) => checked,
            // The page must not read the reason either.
            Err(refusal) => {
                return GateDecision::Refused(
                    PendingAnswer { page: Page::Foreign, leash: None },
                    refusal,
                );
            }
        };
        if let Some(answer) = page.preflight(request.method(), request.headers()) {
            return GateDecision::Answered(answer);
        }
        let asked = AccessRequest {
            credential: credential::find(request.headers(), dialect.schemes()),
            needs: dialect.needs(request),
            vouched: vouched(request, &connection),
        };
        match self.recognize(asked, mode).await {
            Ok(None) => GateDecision::Served(PendingAnswer { page, leash: None }),
            Ok(Some(Recognized { principal, lease })) => {
                connection.standing.know(|| name_of(&principal));
                request.extensions_mut().insert(principal);
                request.extensions_mut().insert(host_paths(mode));
                request.extensions_mut().insert(SignedBy(lease.key().cloned()));
                let version = request.version();
                let leash = StreamLease::new(Arc::clone(&self.auth), lease, connection, version);
                GateDecision::Served(PendingAnswer { page, leash })
            }
            Err(refusal) => GateDecision::Refused(PendingAnswer { page, leash: None }, refusal),
        }
    }

    /// A message comes from anywhere, so the daemon's own user is no better known than others.
    fn mode_for(&self, connection: Option<&Connection>) -> Mode {
        match connection.map(|connection| connection.peer) {
            Some(Peer::Message) => Mode::Keys,
            Some(Peer::Own | Peer::Foreign { .. }) | None => self.auth.mode(),
        }
    }

    /// In local mode, whose machine and user a request comes from is its credential.
    fn check_way(&self, request: &Request, mode: Mode) -> Result<Connection, Refusal> {
        let connection = request.extensions().get::<Connection>().cloned();
        let connection = connection.ok_or(Refusal::ForeignPeer { uid: None })?;
        match (mode, connection.peer) {
            (Mode::Keys, _) => Ok(connection),
            (Mode::Local, Peer::Foreign { uid }) => Err(Refusal::ForeignPeer { uid }),
            (Mode::Local, Peer::Message) => Err(Refusal::ForeignPeer { uid: None }),
            (Mode::Local, Peer::Own) => {
                check_host(request.headers(), request.uri()).map(|()| connection)
            }
        }
    }

    /// The caller of a request, if it is authorized; `None` is an anonymous caller of an endpoint that needs no
    /// credentials.
    async fn recognize(
        &self,
        asked: AccessRequest,
        mode: Mode,
    ) -> Result<Option<Recognized>, Refusal> {
        if mode == Mode::Local {
            let principal = Principal::local();
            return Ok(Some(Recognized { principal, lease: Lease::Unbound }));
        }
        let known = match (asked.vouched, asked.credential) {
            (Some(principal), _) => Ok(Recognized { principal, lease: Lease::Unbound }),
            (None, Ok(credential)) => self.auth.recognize(&credential).await.map_err(Refusal::from),
            (None, Err(refusal)) => Err(refusal),
        };
        match (known, asked.needs) {
            (Ok(known), None) => Ok(Some(known)),
            (Err(_), None) => Ok(None),
            (Ok(known), Some(needed)) => {
                if known.principal.scopes.allow(needed) {
                    Ok(Some(known))
                } else {
                    Err(Refusal::Forbidden { needed, who: known.principal })
                }
            }
            (Err(refusal), Some(_)) => Err(refusal),
        }
    }
}

/// The key that made the request, if any. URLs signed with it become invalid when the key is revoked.
#[derive(Clone, Debug, Default)]
pub struct SignedBy(pub Option<KeyId>);

/// The name under which connections are counted.
fn name_of(who: &Principal) -> String {
    format!("{}\0{}", who.organization, who.user)
}

/// A caller of a sandbox port, before authentication.
pub struct Caller {
    connection: Option<Connection>,
    version: Version,
    asked: AccessRequest,
}

impl Caller {
    pub fn of(request: &Request) -> Self {
        let credential = credential::find(request.headers(), OURS);
        let needs = Some(needed_by_method(request));
        let asked = AccessRequest { credential, needs, vouched: None };
        let connection = request.extensions().get::<Connection>().cloned();
        Self { connection, version: request.version(), asked }
    }
}

/// An authenticated caller of a sandbox port.
pub struct Known {
    pub principal: Principal,
    pub by: By,
    leash: Option<StreamLease>,
}

/// What identifies the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The user's socket, which every page in that user's browser shares.
    Socket,
    /// A key or a token that the caller sent explicitly.
    Sent,
}

impl Known {
    /// Ends a long answer when the key is revoked.
    pub fn hold(self, answer: Response) -> Response {
        hold(self.leash, answer)
    }
}

impl Gate {
    /// Authenticates a caller of a port. The rules are those of the API, except for `Host` and `Origin`, which mean
    /// something else there.
    pub async fn recognize_caller(&self, caller: Caller) -> Result<Known, Refusal> {
        let mode = self.mode_for(caller.connection.as_ref());
        let Some(connection) = caller.connection else {
            return Err(Refusal::ForeignPeer { uid: None });
        };
        let by = match (mode, connection.peer) {
            (Mode::Local, Peer::Foreign { uid }) => return Err(Refusal::ForeignPeer { uid }),
            (Mode::Local, Peer::Message) => return Err(Refusal::ForeignPeer { uid: None }),
            (Mode::Local, Peer::Own) => By::Socket,
            (Mode::Keys, _) => By::Sent,
        };
        let nobody = || Refusal::Unauthenticated { problem: "nobody is known".to_owned() };
        let known = self.recognize(caller.asked, mode).await?;
        let Recognized { principal, lease } = known.ok_or_else(nobody)?;
        connection.standing.know(|| name_of(&principal));
        let leash = StreamLease::new(Arc::clone(&self.auth), lease, connection, caller.version);
        Ok(Known { principal, by, leash })
    }
}

/// A signed URL that is valid for a port.
pub struct Pass {
    leash: Option<StreamLease>,
}

impl Pass {
    /// Ends a long answer when the signed URL becomes invalid.
    pub fn hold(self, answer: Response) -> Response {
        hold(self.leash, answer)
    }
}

impl Gate {
    /// Authenticates a signed URL for `sandbox` whose signature was verified: the key that signed it must still be
    /// valid.
    pub async fn recognize_pass(
        &self,
        caller: &Caller,
        pass: PortPass,
        sandbox: &SandboxId,
    ) -> Result<Pass, Refusal> {
        let PortPass { key, expires_at } = pass;
        if let Some(key) = &key
            && !self.auth.key_holds(key).await?
        {
            return Err(PortTokenProblem::Revoked.into());
        }
        let Some(connection) = caller.connection.clone() else { return Ok(Pass { leash: None }) };
        connection.standing.know(|| sandbox.to_string());
        let (auth, lease) = (Arc::clone(&self.auth), Lease::Pass { key, expires_at });
        Ok(Pass { leash: StreamLease::new(auth, lease, connection, caller.version) })
    }
}

/// The credential of a request, and the scope that it needs.
struct AccessRequest {
    credential: Result<String, Refusal>,
    needs: Option<Scope>,
    vouched: Option<Principal>,
}

fn vouched(request: &Request, connection: &Connection) -> Option<Principal> {
    let Vouched(principal) = request.extensions().get()?;
    (connection.peer == Peer::Message).then(|| principal.clone())
}

impl PendingAnswer {
    /// Completes an answer: CORS headers, the challenge of a 401, and the lease of a stream.
    pub fn finish(self, mut answer: Response, schemes: &[Scheme]) -> Response {
        self.page.mark(&mut answer);
        credential::challenge(&mut answer, schemes);
        hold(self.leash, answer)
    }
}

/// The user who runs the daemon can read host paths anyway.
fn host_paths(mode: Mode) -> HostPaths {
    match mode {
        Mode::Local => HostPaths::Any,
        Mode::Keys => HostPaths::BeneathRoots,
    }
}

/// Ties an answer that continues, a stream or an upgraded connection, to its key.
fn hold(leash: Option<StreamLease>, answer: Response) -> Response {
    let is_live = answer.status() == StatusCode::SWITCHING_PROTOCOLS
        || answer.body().size_hint().exact().is_none();
    match leash {
        Some(leash) if is_live => leash.hold(answer),
        Some(_) | None => answer,
    }
}
