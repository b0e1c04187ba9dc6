//! The rules for outgoing connections of the daemon: registries, token servers, issuers, webhooks.
//!
//! ```text
//! URL ──▶ scheme      https, or http that stays on this machine
//!     ──▶ resolve     once; every address is public, allowed, or configured
//!     ──▶ CheckedUrl    the URL with those addresses
//!     ──▶ client      connects to those addresses and no others: no proxy, no redirect, no second lookup
//! ```
//!
//! Invariant: no byte is sent to an address that was not checked. A name that resolves differently later has no effect,
//! and the target of a redirect has to be admitted first.

mod address;
mod allowed;
pub mod crypto;
pub mod dial;
pub mod hello;
pub mod resolve;
mod roots;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Response, Url};
use tokio::net::TcpStream;

use sandkeep_core::limits::{OUTGOING_CONNECT, OUTGOING_RESOLVE};

pub use address::{is_own, is_public};
pub use allowed::{Allowed, InvalidAllowed};
pub use roots::Roots;

#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    #[error("{url:?} is not a URL")]
    NotAUrl { url: String },
    #[error("{url} is not https; plain http is accepted on loopback only")]
    NotEncrypted { url: Url },
    #[error(
        "{host} is at {address}, which is not a public address, or one of this machine; an administrator can allow it by adding \
         {host:?} to `outgoing_allow`"
    )]
    NotPublic { host: String, address: IpAddr },
    #[error("{host} has no address")]
    Unknown { host: String },
    #[error("cannot resolve {host}: {source}")]
    Resolve {
        host: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the certificates in {path} cannot be used: {problem}")]
    Certificates { path: String, problem: String },
    #[error("cannot prepare calls to {host}: {problem}")]
    Client { host: String, problem: String },
}

/// Who chose a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// The administrator's configuration: it may be anywhere.
    ByUs,
    /// A caller, or a server's answer: it must be public or allowed.
    ByOthers,
}

/// The allowed destinations.
#[derive(Clone, Debug, Default)]
pub struct Outgoing {
    allow: Arc<[Allowed]>,
    roots: Roots,
}

/// An admitted URL, and its addresses.
#[derive(Clone, Debug)]
pub struct CheckedUrl {
    url: Url,
    addresses: Vec<SocketAddr>,
    allowed: bool,
    roots: Roots,
}

/// Parses a URL for an outgoing call.
pub fn url(text: &str) -> Result<Url, OutgoingError> {
    let url = Url::parse(text).map_err(|_| OutgoingError::NotAUrl { url: text.to_owned() })?;
    encrypted(&url)?;
    Ok(url)
}

/// Whether a URL's host is literally this machine.
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

fn encrypted(url: &Url) -> Result<(), OutgoingError> {
    let local = is_loopback(url.host_str().unwrap_or_default());
    match url.scheme() {
        "https" => Ok(()),
        "http" if local => Ok(()),
        _ => Err(OutgoingError::NotEncrypted { url: shown(url) }),
    }
}

/// A URL for display: without credentials, before the host or after the path.
pub fn shown(url: &Url) -> Url {
    let mut url = url.clone();
    // Both fail only for URLs without a host, which have no credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url
}

impl Outgoing {
    pub fn new(allow: Vec<Allowed>, roots: Roots) -> Self {
        Self { allow: allow.into(), roots }
    }

    /// Resolves a URL and checks whether it may be called.
    pub async fn admit(&self, url: &Url, chosen: Chosen) -> Result<CheckedUrl, OutgoingError> {
        encrypted(url)?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
        let port = url.port_or_known_default().unwrap_or_default();
        let addresses = resolve(&host, port).await?;
        let plain = url.scheme() == "http";
        let refused = addresses.iter().map(SocketAddr::ip).find(|address| {
            // A machine may be configured to resolve localhost to something else.
            let leaves = plain && !address.to_canonical().is_loopback();
            leaves || !self.may_go(&host, *address, port, chosen)
        });
        match refused {
            Some(address) => Err(OutgoingError::NotPublic { host, address }),
            None => {
                let allowed = addresses.iter().all(|to| self.allows(&host, to.ip(), port));
                Ok(CheckedUrl { url: url.clone(), addresses, allowed, roots: self.roots.clone() })
            }
        }
    }

    fn allows(&self, host: &str, address: IpAddr, port: u16) -> bool {
        self.allow.iter().any(|allowed| allowed.covers(host, address, port))
    }

    fn may_go(&self, host: &str, address: IpAddr, port: u16, chosen: Chosen) -> bool {
        match chosen {
            Chosen::ByUs => true,
            Chosen::ByOthers => {
                (address::is_public(address) && !address::is_own(address))
                    || self.allows(host, address, port)
            }
        }
    }
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, OutgoingError> {
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => OutgoingError::Unknown { host: host.to_owned() },
        _ => OutgoingError::Resolve { host: host.to_owned(), source },
    };
    let found = resolve::within(OUTGOING_RESOLVE, host).await.map_err(failed)?;
    Ok(found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
}

impl CheckedUrl {
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Whether `outgoing_allow` covers it.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Connects to its addresses, and nowhere else. The protocol is up to the caller.
    pub async fn connect(&self) -> std::io::Result<TcpStream> {
        dial::dial(&self.addresses, OUTGOING_CONNECT).await
    }

    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// A client for this scheme, host and port. It follows no redirects, whose targets [`Outgoing::admit`] must check.
    /// A call to another host through it would be unchecked.
    pub fn client(&self) -> Result<Client, OutgoingError> {
        self.builder().build().map_err(|e| OutgoingError::Client {
            host: self.url.host_str().unwrap_or_default().to_owned(),
            problem: sandkeep_core::with_causes(&e.without_url()),
        })
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .referer(false)
            .connect_timeout(OUTGOING_CONNECT)
            .resolve_to_addrs(self.url.host_str().unwrap_or_default(), &self.addresses)
            .tls_certs_merge(self.roots.additional())
    }
}

/// Why a body could not be read.
#[derive(Debug)]
pub enum BodyError {
    TooLarge,
    Broken(reqwest::Error),
}

/// Reads a whole body of at most `max_bytes`.
pub async fn body(mut response: Response, max_bytes: usize) -> Result<Vec<u8>, BodyError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(BodyError::Broken)? {
        if body.len() + chunk.len() > max_bytes {
            return Err(BodyError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
mod tests;
