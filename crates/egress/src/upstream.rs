//! Connections to the outside: the only place that dials.
//!
//! ```text
//! host ──▶ lookup      once for each connection
//!      ──▶ check       every address that may not be dialed is dropped
//!      ──▶ dial        the addresses that were checked; there is no second lookup
//! ```

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use sandkeep_core::limits::{EGRESS_ADDRESSES_MAX, EGRESS_DIAL};
use sandkeep_outgoing::dial::dial;

use crate::policy::{Host, NotDialed, Reach};
use crate::sandbox::{Connection, Sandbox, lock};

/// Why there is no connection to a host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("{host} was not found: {source}")]
    Lookup {
        host: String,
        #[source]
        source: io::Error,
    },
    #[error("{host} must not be reached: {problem}")]
    Refused {
        host: String,
        #[source]
        problem: NotDialed,
    },
    #[error("{host} does not answer on port {port}: {source}")]
    Dial {
        host: String,
        port: u16,
        #[source]
        source: io::Error,
    },
    #[error("{host} has no certificate that this machine trusts: {problem}")]
    Certificate { host: String, problem: String },
    #[error(
        "{host} wants a certificate of the client, which a host with secrets or rules for requests cannot get; \
         name it in the policy without them"
    )]
    ClientCertificate { host: String },
    #[error("no TLS with {host}: {problem}")]
    Tls { host: String, problem: String },
}

/// Connects to a host whose connection was allowed.
pub(crate) async fn connect(
    sandbox: &Sandbox,
    connection: &Connection,
    host: &Host,
    port: u16,
    reach: Reach,
) -> Result<TcpStream, UpstreamError> {
    let checked = addresses(sandbox, host, port, reach).await?;
    let dialed = dial(&checked, EGRESS_DIAL).await;
    let failed = |source| UpstreamError::Dial { host: host.to_string(), port, source };
    let stream = dialed.map_err(failed)?;
    // It only delays.
    let _ = stream.set_nodelay(true);
    if let Some(goes) = lock(&connection.goes).as_mut() {
        goes.peer = stream.peer_addr().ok();
    }
    Ok(stream)
}

/// The addresses of an allowed host that may be dialed, at least one.
pub(crate) async fn addresses(
    sandbox: &Sandbox,
    host: &Host,
    port: u16,
    reach: Reach,
) -> Result<Vec<SocketAddr>, UpstreamError> {
    let found = match host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => lookup(sandbox, name).await?,
    };
    let rules = sandbox.rules();
    let (mut checked, mut problem) = (Vec::new(), NotDialed::None);
    for address in found.into_iter().map(|address| address.to_canonical()) {
        match rules.may_dial(address, port, reach) {
            Ok(()) => checked.push(SocketAddr::new(address, port)),
            Err(refused) => problem = refused,
        }
    }
    if checked.is_empty() {
        return Err(UpstreamError::Refused { host: host.to_string(), problem });
    }
    checked.truncate(EGRESS_ADDRESSES_MAX);
    Ok(checked)
}

/// The addresses of a name, if they are found in time.
pub(crate) async fn lookup(sandbox: &Sandbox, name: &str) -> Result<Vec<IpAddr>, UpstreamError> {
    let failed = |source| UpstreamError::Lookup { host: name.to_owned(), source };
    let timed_out = || failed(io::ErrorKind::TimedOut.into());
    let turn = timeout(EGRESS_DIAL, sandbox.lookup_turn()).await.map_err(|_| timed_out())?;
    let (resolver, wanted) = (Arc::clone(&sandbox.gateway.resolver), name.to_owned());
    // The system's resolver cannot be told to stop: it holds a thread until it is done. So the turn lasts as long,
    // although nobody waits for the answer any more.
    let looking = tokio::spawn(async move {
        let found = resolver.resolve(&wanted).await;
        drop(turn);
        found
    });
    let found = timeout(EGRESS_DIAL, looking).await.map_err(|_| timed_out())?;
    found.map_err(|error| failed(io::Error::other(error)))?.map_err(failed)
}

/// Connects and speaks TLS, with the first of the protocols that the server speaks, too.
pub(crate) async fn connect_tls(
    sandbox: &Sandbox,
    connection: &Connection,
    (name, port, reach): (&str, u16, Reach),
    protocols: Vec<Vec<u8>>,
) -> Result<TlsStream<TcpStream>, UpstreamError> {
    let host = Host::Name(name.to_owned());
    let stream = connect(sandbox, connection, &host, port, reach).await?;
    let gateway = Arc::clone(&sandbox.gateway);
    let tls = |problem: String| UpstreamError::Tls { host: name.to_owned(), problem };
    // Reading the machine's certificates blocks, once.
    let config = tokio::task::spawn_blocking(move || gateway.client()).await;
    let mut config = config.map_err(|error| tls(error.to_string()))?.as_ref().clone();
    config.alpn_protocols = protocols;
    let server = ServerName::try_from(name.to_owned()).map_err(|error| tls(error.to_string()))?;
    let handshake = TlsConnector::from(Arc::new(config)).connect(server, stream);
    match timeout(sandbox.times().handshake, handshake).await {
        Ok(done) => done.map_err(|error| tls_error(name, &error)),
        Err(_) => Err(tls("it did not finish the handshake in time".to_owned())),
    }
}

/// Says what is wrong with a TLS connection.
pub(crate) fn tls_error(name: &str, error: &io::Error) -> UpstreamError {
    let host = name.to_owned();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::AlertReceived(alert)) if is_about_us(*alert) => {
            UpstreamError::ClientCertificate { host }
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(other))) => {
            UpstreamError::Certificate { host, problem: other.to_string() }
        }
        Some(rustls::Error::InvalidCertificate(problem)) => {
            UpstreamError::Certificate { host, problem: problem.to_string() }
        }
        _ => UpstreamError::Tls { host, problem: error.to_string() },
    }
}

fn is_about_us(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::NoCertificate
    )
}
