//! One request through a connection into a sandbox: HTTP/1.1 on both sides, parsed and re-encoded by hyper. Bodies
//! stream in both directions with backpressure. A protocol upgrade turns the two connections into a pipe.

use std::error::Error as _;
use std::io;
use std::net::IpAddr;

use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::response::Response;
use futures_util::stream;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::headers::{
    X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PREFIX, X_FORWARDED_PROTO, ask_for_upgrade,
    strip_request, upgrade,
};
use crate::kit::Refusal;
use sandkeep_broker::PortStream;
use sandkeep_core::limits::{PORT_HEADERS_MAX, PORT_HEADERS_MAX_BYTES};

/// What the server inside learns about the original request.
#[derive(Clone, Debug)]
pub struct Forwarded {
    pub client: Option<IpAddr>,
    /// The host that the client addressed.
    pub host: String,
    pub proto: &'static str,
    /// The removed path prefix.
    pub prefix: Option<String>,
}

impl Forwarded {
    fn tell(&self, headers: &mut HeaderMap) {
        let client = self.client.map(|client| client.to_string());
        let told = [
            (X_FORWARDED_FOR, client.as_deref()),
            (X_FORWARDED_HOST, Some(self.host.as_str())),
            (X_FORWARDED_PROTO, Some(self.proto)),
            (X_FORWARDED_PREFIX, self.prefix.as_deref()),
        ];
        for (name, value) in told {
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                headers.insert(name, value);
            }
        }
    }
}

/// Forwards a request with another target and `Host`, and returns the server's answer without its hop-by-hop headers.
/// The caller cleans the remaining headers.
pub async fn forward(
    stream: PortStream,
    mut request: Request,
    target: PathAndQuery,
    host: &str,
    forwarded: &Forwarded,
) -> Result<Response, Refusal> {
    let protocol = upgrade(request.headers());
    let outside = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
    let method = request.method().clone();
    prepare(&mut request, target, host, forwarded);
    if let Some(protocol) = protocol {
        ask_for_upgrade(request.headers_mut(), protocol);
    }
    let answer = send(stream, request).await.map_err(|error| broken(&error))?;
    match (answer.status(), outside) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(outside)) => switch(answer, outside),
        (StatusCode::SWITCHING_PROTOCOLS, None) => {
            let problem = "it changed the protocol, which nobody had asked for".to_owned();
            Err(Refusal::PortBroke { problem })
        }
        _ => Ok(with_body(answer, &method)),
    }
}

fn prepare(request: &mut Request, target: PathAndQuery, host: &str, forwarded: &Forwarded) {
    *request.version_mut() = Version::HTTP_11;
    *request.uri_mut() = Uri::from(target);
    let headers = request.headers_mut();
    strip_request(headers);
    forwarded.tell(headers);
    if let Ok(host) = HeaderValue::try_from(host) {
        headers.insert(header::HOST, host);
    }
}

async fn send(
    stream: PortStream,
    request: Request,
) -> Result<Response<hyper::body::Incoming>, hyper::Error> {
    let (mut sender, connection) = http1::Builder::new()
        .max_headers(PORT_HEADERS_MAX)
        .max_buf_size(PORT_HEADERS_MAX_BYTES)
        .handshake::<_, Body>(TokioIo::new(stream))
        .await?;
    // The connection ends after this exchange, because the sender is dropped.
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection into a sandbox ended early");
        }
    });
    sender.send_request(request).await
}

/// The body as a stream. For answers without a body the length is unknown too: the server's headers stay as they are.
fn with_body(answer: Response<hyper::body::Incoming>, method: &Method) -> Response {
    let bodiless = *method == Method::HEAD
        || matches!(answer.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    answer.map(|body| {
        if bodiless {
            Body::from_stream(stream::empty::<io::Result<bytes::Bytes>>())
        } else {
            Body::new(body)
        }
    })
}

/// Both sides have agreed on another protocol: from here on, only copy bytes.
fn switch(
    mut answer: Response<hyper::body::Incoming>,
    outside: OnUpgrade,
) -> Result<Response, Refusal> {
    let protocol = upgrade(answer.headers());
    let inside = hyper::upgrade::on(&mut answer);
    let mut answer = answer.map(|_| Body::empty());
    if let Some(protocol) = protocol {
        super::headers::strip_hop_by_hop(answer.headers_mut());
        ask_for_upgrade(answer.headers_mut(), protocol);
    }
    tokio::spawn(async move {
        let (outside, inside) = match tokio::try_join!(outside, inside) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "a change of protocol came to nothing"),
        };
        let (mut outside, mut inside) = (TokioIo::new(outside), TokioIo::new(inside));
        // The inner side ends when it is idle for long, and with the broker; that closes both.
        if let Err(error) = tokio::io::copy_bidirectional(&mut outside, &mut inside).await {
            tracing::debug!(%error, "a connection of another protocol broke");
        }
    });
    Ok(answer)
}

fn broken(error: &hyper::Error) -> Refusal {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match io.map(io::Error::kind) {
        Some(io::ErrorKind::TimedOut) => Refusal::PortSilent,
        Some(_) | None => Refusal::PortBroke { problem: sandkeep_core::with_causes(error) },
    }
}
