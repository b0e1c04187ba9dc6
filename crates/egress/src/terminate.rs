//! TLS that ends here, because the requests inside have to be read: those of hosts with secrets or rules for requests.
//!
//! The server is connected first and chooses the protocol among those that the program offers, so that both sides speak
//! the same. If there is no server, the program gets an answer that says so.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use sandkeep_outgoing::hello::ClientHello;

use crate::carry::alert;
use crate::connection::{Flow, Refusal, Site};
use crate::http;
use crate::stream::{Replayed, Stream};
use crate::upstream::{self, UpstreamError};

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";
const NO_APPLICATION_PROTOCOL: u8 = 120;
const INTERNAL_ERROR: u8 = 80;

/// The HTTP that both sides speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

impl Version {
    /// The protocols to offer, for one that was chosen before.
    pub(crate) fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http1 => vec![HTTP1.to_vec()],
            Self::Http2 => vec![HTTP2.to_vec()],
        }
    }

    /// What was chosen; without a choice it is HTTP/1.1.
    pub(crate) fn of(chosen: Option<&[u8]>) -> Self {
        match chosen {
            Some(HTTP2) => Self::Http2,
            _ => Self::Http1,
        }
    }
}

pub(crate) async fn serve(
    flow: Flow,
    mut inside: Stream,
    site: Site,
    name: String,
    hello: ClientHello,
) {
    flow.reads();
    let spoken = |protocol: &&Vec<u8>| [HTTP1, HTTP2].contains(&protocol.as_slice());
    let protocols: Vec<Vec<u8>> = hello.protocols.iter().filter(spoken).cloned().collect();
    if protocols.is_empty() && !hello.protocols.is_empty() {
        let reason = "its requests have to be read, and it speaks something else than HTTP";
        flow.record_refused(&site.host, site.port, &Refusal::because(reason));
        return alert(&mut inside, NO_APPLICATION_PROTOCOL).await;
    }
    let gateway = Arc::clone(&flow.sandbox.gateway);
    let of = name.clone();
    // Reading or making the authority blocks, once.
    let leaf = tokio::task::spawn_blocking(move || gateway.authority.leaf(&of)).await;
    let leaf = match leaf.map_err(|error| error.to_string()) {
        Ok(Ok(leaf)) => leaf,
        Ok(Err(error)) => return unusable(&flow, &site, &mut inside, error.to_string()).await,
        Err(error) => return unusable(&flow, &site, &mut inside, error).await,
    };
    let to = (name.as_str(), site.port, site.reach);
    let connection = &flow.admitted.connection;
    let offered = if protocols.is_empty() { Version::Http1.protocols() } else { protocols.clone() };
    let outside = upstream::connect_tls(&flow.sandbox, connection, to, offered).await;
    let chosen = match &outside {
        Ok(outside) => outside.get_ref().1.alpn_protocol().map(<[u8]>::to_vec),
        Err(_) => protocols.first().cloned(),
    };
    let version = Version::of(chosen.as_deref());
    let answered = if protocols.is_empty() { Vec::new() } else { version.protocols() };
    let replayed = Replayed::new(hello.bytes, inside);
    let acceptor = TlsAcceptor::from(Arc::new(server_config(leaf, answered)));
    let accepted = timeout(flow.sandbox.times().handshake, acceptor.accept(replayed)).await;
    let inside = match accepted {
        Ok(Ok(inside)) => inside,
        Ok(Err(error)) => return flow.failed(&site, not_accepted(&error)),
        Err(_) => {
            flow.reset();
            return flow.failed(&site, "its TLS handshake took too long".to_owned());
        }
    };
    http::serve_terminated(flow, Box::new(inside), site, version, outside).await;
}

async fn unusable(flow: &Flow, site: &Site, inside: &mut Stream, problem: String) {
    flow.failed(site, problem);
    alert(inside, INTERNAL_ERROR).await;
}

fn server_config(leaf: Arc<CertifiedKey>, protocols: Vec<Vec<u8>>) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(leaf)));
    config.alpn_protocols = protocols;
    config
}

fn not_accepted(error: &std::io::Error) -> String {
    format!(
        "the program inside does not accept the certificate of this daemon ({error}): it pins another one, or does \
         not read the bundle that SSL_CERT_FILE names; a host with secrets or rules for requests needs it"
    )
}

/// A connection to the server, or why there is none, for the answers to requests.
pub(crate) type Outside =
    Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>, UpstreamError>;
