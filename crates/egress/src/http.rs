//! HTTP between a sandbox and a host, read and written again by the same library on both sides: what is sent on is what
//! was understood, so that two readers cannot disagree about where a request ends.

mod headers;
mod inject;
mod pool;
pub(crate) mod refusal;
mod requests;
mod session;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, server};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use sandkeep_core::limits::{
    EGRESS_BUFFER_BYTES, EGRESS_CONNECTION_WINDOW_BYTES, EGRESS_HEADERS_MAX,
    EGRESS_HEADERS_MAX_BYTES, EGRESS_STREAM_WINDOW_BYTES, EGRESS_STREAMS_MAX,
};

use crate::connection::{Flow, Site};
use crate::policy::Transport;
use crate::sandbox::lock;
use crate::stream::Stream;
use crate::terminate::{Outside, Version};

pub(crate) use headers::{HostAndPort, authority};
pub(crate) use session::Session;

/// What a program gets: the body of a server, or a text of ours.
pub(crate) type Body = Either<Incoming, Full<Bytes>>;

/// What happens to a connection after its last request changed its protocol.
pub(crate) type Tunnel = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a request leaves it.
#[derive(Clone, Default)]
pub(crate) struct TunnelSlot(Arc<Mutex<Option<Tunnel>>>);

impl TunnelSlot {
    pub(crate) fn put(&self, tunnel: Tunnel) {
        *lock(&self.0) = Some(tunnel);
    }

    pub(crate) fn take(&self) -> Option<Tunnel> {
        lock(&self.0).take()
    }
}

/// Unencrypted HTTP to one host.
pub(crate) async fn serve_plain(flow: Flow, inside: Stream, site: Site) {
    flow.reads();
    let tunnel = TunnelSlot::default();
    let session = Session::new(flow.clone(), site, Transport::Plain, tunnel.clone());
    let session = Arc::new(session);
    serve_http1(&flow, inside, tunnel, move |request| {
        let session = Arc::clone(&session);
        async move { session.answer(request).await }
    })
    .await;
}

/// HTTP to one host, whose TLS ended here.
pub(crate) async fn serve_terminated(
    flow: Flow,
    inside: Stream,
    site: Site,
    version: Version,
    outside: Outside,
) {
    let tunnel = TunnelSlot::default();
    let session = Session::new(flow.clone(), site, Transport::Tls, tunnel.clone());
    let session = Arc::new(session.connected(version, outside).await);
    let answer = move |request| {
        let session = Arc::clone(&session);
        async move { session.answer(request).await }
    };
    match version {
        Version::Http1 => serve_http1(&flow, inside, tunnel, answer).await,
        Version::Http2 => serve_http2(inside, answer).await,
    }
}

/// Serves requests one after the other, then the tunnel that the last one may have opened.
pub(crate) async fn serve_http1<F, A>(flow: &Flow, inside: Stream, tunnel: TunnelSlot, answer: F)
where
    F: Fn(Request<Incoming>) -> A + Send + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let mut builder = server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(flow.sandbox.times().handshake)
        .max_buf_size(EGRESS_HEADERS_MAX_BYTES)
        .max_headers(EGRESS_HEADERS_MAX)
        .preserve_header_case(true)
        .auto_date_header(false);
    let service = service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = builder.serve_connection(TokioIo::new(inside), service).with_upgrades();
    // How it ended is the program's concern; a message that is none was answered with 400.
    let _ = connection.await;
    if let Some(tunnel) = tunnel.take() {
        tunnel.await;
    }
}

async fn serve_http2<F, A>(inside: Stream, answer: F)
where
    F: Fn(Request<Incoming>) -> A + Send + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    let mut builder = server::conn::http2::Builder::new(TokioExecutor::new());
    let max = u32::try_from(EGRESS_HEADERS_MAX_BYTES).unwrap_or(u32::MAX);
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(max)
        .max_concurrent_streams(EGRESS_STREAMS_MAX)
        .initial_stream_window_size(EGRESS_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(EGRESS_CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(EGRESS_BUFFER_BYTES)
        .auto_date_header(false);
    let service = service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    // How it ended is the program's concern.
    let _ = builder.serve_connection(TokioIo::new(inside), service).await;
}
