//! One connection of a sandbox, from its acceptance to its end.
//!
//! ```text
//! accepted ──▶ admitted           or reset: there are too many
//!          ──▶ destination        getsockname(): what the program claims
//!          ──▶ 53: resolver       198.18.0.1:3128: proxy        other own addresses: reset
//!          ──▶ name or address    an address that stands for a name is that name from here on
//!          ──▶ decided            by the policy, or by the owner
//!          ──▶ carried            by port: TLS, HTTP, or as it is
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use sandkeep_core::network::{Choice, DecisionKind, NetworkVerdict, OnDeny};

use crate::ask::{self, Outcome};
use crate::http::refusal;
use crate::meter::Inside;
use crate::names;
use crate::policy::{Allowed, Finding, Host, Reach};
use crate::resolver;
use crate::sandbox::{Basis, CountedConnection, Goes, Line, Sandbox, lock};
use crate::stream::Stream;
use crate::{PROXY, carry, proxy};

const DNS: u16 = 53;

/// Serves a connection that was accepted. `to` is where it wanted to go.
pub(crate) async fn serve(sandbox: Arc<Sandbox>, stream: TcpStream, to: SocketAddr) {
    let Some(admitted) = sandbox.admit() else {
        let host = Host::Address(to.ip().to_canonical());
        let line = Line::of(DecisionKind::Connection, NetworkVerdict::Denied);
        let reason = "the sandbox, or all sandboxes together, have too many connections";
        sandbox.record(Line { reason: Some(reason.to_owned()), ..line.to(&host, to.port()) });
        // It only fails for a connection that is gone already.
        let _ = stream.set_zero_linger();
        return;
    };
    let connection = Arc::clone(&admitted.connection);
    let used_up = CancellationToken::new();
    let counts = Arc::clone(&connection.counts);
    let meter = Arc::clone(&sandbox.meter);
    // It only delays.
    let _ = stream.set_nodelay(true);
    let inside = Inside::new(stream, meter, counts, used_up.clone());
    let flow = Flow { sandbox: Arc::clone(&sandbox), admitted: Arc::new(admitted) };
    let ended = tokio::select! {
        () = flow.clone().serve(Box::new(inside), to) => None,
        () = connection.cut.cancelled() => Some("the policy no longer allows it, or the sandbox has ended"),
        () = used_up.cancelled() => {
            sandbox.cut_all();
            Some("the bytes that limits.bytes_total allows are used up")
        }
        () = connection.counts.idle(sandbox.times().idle) => {
            connection.counts.reset_at_end();
            Some("nothing was sent for too long")
        }
    };
    flow.closed(ended);
}

/// A connection on its way.
#[derive(Clone)]
pub(crate) struct Flow {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) admitted: Arc<CountedConnection>,
}

/// A destination that was decided.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) reach: Reach,
}

/// Why a connection or request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) rule: Option<String>,
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self { rule: None, reason: reason.into() }
    }
}

impl Flow {
    async fn serve(self, inside: Stream, to: SocketAddr) {
        let address = to.ip().to_canonical();
        if self.sandbox.meter.is_used_up() {
            let reason = "the bytes that limits.bytes_total allows are used up";
            return self.refuse(&Host::Address(address), to.port(), &Refusal::because(reason));
        }
        if to.port() == DNS {
            // How it ended is the program's concern.
            let _ = resolver::serve_stream(&self.sandbox, inside).await;
            return;
        }
        if SocketAddr::new(address, to.port()) == PROXY {
            return proxy::serve(self, inside).await;
        }
        let host = match self.host(address) {
            Ok(host) => host,
            Err(refusal) => return self.refuse(&Host::Address(address), to.port(), &refusal),
        };
        match self.decide(&host, to.port()).await {
            Ok(site) => carry::carry(self, inside, site).await,
            Err(refusal) if to.port() == 80 => {
                refusal::serve(&self, inside, &host, to.port(), &refusal).await;
            }
            Err(_) => self.reset(),
        }
    }

    /// What an address stands for.
    pub(crate) fn host(&self, address: IpAddr) -> Result<Host, Refusal> {
        if !names::is_reserved(address) {
            return Ok(Host::Address(address));
        }
        let name = self.sandbox.names().name(address);
        name.map(|name| Host::Name(name.as_ref().to_owned())).ok_or_else(|| {
            Refusal::because("no name has this address; resolve the host's name again")
        })
    }

    /// Whether the connection may go there. If the owner has to decide, it waits. Writes it to the log.
    pub(crate) async fn decide(&self, host: &Host, port: u16) -> Result<Site, Refusal> {
        let decided = self.find(host, port).await;
        let Err(refusal) = decided else { return decided };
        self.record_refused(host, port, &refusal);
        Err(refusal)
    }

    async fn find(&self, host: &Host, port: u16) -> Result<Site, Refusal> {
        let rules = self.sandbox.rules();
        let (basis, reach, rule) = match rules.find(host, port) {
            Finding::Denied { rule, reason } => {
                return Err(Refusal { rule: Some(rule), reason: reason.to_owned() });
            }
            Finding::Allowed(Allowed { rule, reach, .. }) => (Basis::Listed, reach, rule),
            Finding::Unlisted => match rules.on_deny {
                OnDeny::Refuse => {
                    return Err(Refusal::because("no entry of the policy allows it"));
                }
                OnDeny::Audit => (Basis::Audited, Reach::Public, "on_deny: audit".to_owned()),
                OnDeny::Ask => {
                    let basis = self.ask(host, port).await?;
                    (basis, Reach::PublicAndRanges, "allowed by the owner".to_owned())
                }
            },
        };
        if let Some(address) = host.address() {
            let may = rules.may_dial(address, port, reach);
            may.map_err(|problem| Refusal::because(problem.to_string()))?;
        }
        let verdict = match basis {
            Basis::Listed | Basis::Once => NetworkVerdict::Allowed,
            Basis::Audited => NetworkVerdict::Audited,
        };
        *lock(&self.admitted.connection.goes) = Some(Goes {
            host: host.clone(),
            port,
            basis,
            reach,
            is_read: false,
            peer: None,
            remark: None,
        });
        // A change of the rules since has not seen where the connection goes.
        if basis == Basis::Listed
            && !matches!(self.sandbox.rules().find(host, port), Finding::Allowed(_))
        {
            return Err(Refusal::because("the policy was changed"));
        }
        let line = self.line(DecisionKind::Connection, verdict).to(host, port);
        self.sandbox.record(Line { rule: Some(rule), ..line });
        self.sandbox.used(host, port);
        Ok(Site { host: host.clone(), port, reach })
    }

    async fn ask(&self, host: &Host, port: u16) -> Result<Basis, Refusal> {
        let outcome = ask::wait(&self.sandbox, host, port).await;
        match outcome.map_err(|error| Refusal::because(error.to_string()))? {
            Outcome::Decided(Choice::Once) => Ok(Basis::Once),
            Outcome::Decided(Choice::Always) => Ok(Basis::Listed),
            Outcome::Decided(Choice::Refuse) => Err(Refusal::because("the owner refused it")),
            Outcome::Expired => Err(Refusal::because("the owner did not decide in time")),
        }
    }

    pub(crate) fn line(&self, kind: DecisionKind, verdict: NetworkVerdict) -> Line {
        let connection = Some(self.admitted.connection.number);
        Line { connection, ..Line::of(kind, verdict) }
    }

    /// From here on the connection ends with a reset.
    pub(crate) fn reset(&self) {
        self.admitted.connection.counts.reset_at_end();
    }

    pub(crate) fn refuse(&self, host: &Host, port: u16, refusal: &Refusal) {
        self.record_refused(host, port, refusal);
        self.reset();
    }

    pub(crate) fn record_refused(&self, host: &Host, port: u16, refusal: &Refusal) {
        let line = self.line(DecisionKind::Connection, NetworkVerdict::Denied).to(host, port);
        let (rule, reason) = (refusal.rule.clone(), Some(refusal.reason.clone()));
        self.sandbox.record(Line { rule, reason, ..line });
    }

    /// An allowed connection that did not work.
    pub(crate) fn failed(&self, site: &Site, reason: String) {
        let line = self.line(DecisionKind::Connection, NetworkVerdict::Failed);
        self.sandbox.record(Line { reason: Some(reason), ..line.to(&site.host, site.port) });
    }

    /// Notes that the requests of the connection are read.
    pub(crate) fn reads(&self) {
        if let Some(goes) = lock(&self.admitted.connection.goes).as_mut() {
            goes.is_read = true;
        }
    }

    /// The log says at the end of the connection that its TLS may be for another name than the one that was seen.
    pub(crate) fn hides_its_name(&self) {
        const REMARK: &str = "its ClientHello has an encrypted one (ECH), which was not seen; only its outer name was checked";
        if let Some(goes) = lock(&self.admitted.connection.goes).as_mut() {
            goes.remark = Some(REMARK);
        }
    }

    /// The log says how an allowed connection ended.
    fn closed(&self, ended: Option<&str>) {
        let connection = &self.admitted.connection;
        let Some(goes) = lock(&connection.goes).take() else { return };
        let (up, down) = connection.counts.bytes();
        let verdict = match goes.basis {
            Basis::Listed | Basis::Once => NetworkVerdict::Allowed,
            Basis::Audited => NetworkVerdict::Audited,
        };
        let line = self.line(DecisionKind::Closed, verdict).to(&goes.host, goes.port);
        self.sandbox.record(Line {
            address: goes.peer.map(|peer| peer.ip()).or(line.address),
            reason: ended.or(goes.remark).map(str::to_owned),
            ended: Some((up, down, connection.counts.age())),
            ..line
        });
    }
}
