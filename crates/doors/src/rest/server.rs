//! Connections: who may make one, how they are served, and how they end with the daemon.
//!
//! HTTP/1.1 with keep-alive. The owner of the peer's socket is looked up once per connection, before
//! the first request, so the requests themselves pay nothing for it. A handshake takes place in the
//! connection's own task: a slow one holds nobody up.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::authenticate::{Connection, Door, Peer};
use super::leash::Cuttable;
use super::origins::{Origins, Reach};
use super::tls::Tls;
use crate::auth::{Auth, Mode};
use crate::ports::PortDoor;
use sandkeep_broker::Broker;
use sandkeep_core::limits::{
    ACCEPT_RETRY, CONNECTIONS_MAX, HEADERS_READ, SHUTDOWN_DRAIN, TLS_HANDSHAKE,
};
use sandkeep_sys::peer;

/// How the door to a broker is furnished.
pub struct Front {
    pub auth: Arc<Auth>,
    /// Whose web pages may call.
    pub origins: Origins,
    /// `None` is plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// What the host names of ports end with.
    pub domain: String,
}

/// What every connection needs.
struct Shared {
    router: Router,
    auth: Arc<Auth>,
    tls: Option<Arc<Tls>>,
    stop: CancellationToken,
    cut: CancellationToken,
}

/// Serves until `shutdown` resolves; then accepts no more, lets requests under way finish for up to
/// [`SHUTDOWN_DRAIN`], and cuts off the rest.
pub async fn serve(
    listener: TcpListener,
    broker: Broker,
    front: Front,
    shutdown: impl Future<Output = ()>,
) {
    let Front { auth, origins, tls, domain } = front;
    let door = Door { auth: Arc::clone(&auth), origins, reach: reach(&listener) };
    let door = Arc::new(door);
    let proto = if tls.is_some() { "https" } else { "http" };
    let ports = PortDoor { broker: broker.clone(), door: Arc::clone(&door), domain, proto };
    let (stop, cut) = (CancellationToken::new(), CancellationToken::new());
    let router = super::router(broker.clone(), door, Arc::new(ports), &stop);
    let shared = Arc::new(Shared { router, auth, tls, stop: stop.clone(), cut: cut.clone() });
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, place) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let connection = connection(stream, place, Arc::clone(&shared));
        let cut = cut.clone();
        connections.spawn(async move {
            tokio::select! {
                () = connection => {}
                () = cut.cancelled() => {}
            }
        });
    }
    drop(listener);
    // Streams would otherwise go on for as long as their commands do.
    broker.detach_watchers();
    stop.cancel();
    connections.close();
    if tokio::time::timeout(SHUTDOWN_DRAIN, connections.wait()).await.is_err() {
        tracing::warn!("{} connections did not finish in time", connections.len());
        cut.cancel();
        connections.wait().await;
    }
}

/// The next connection, when there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(e) => {
                // Out of descriptors, most likely. The connection stays in the backlog, so trying
                // again at once would spin.
                tracing::warn!("cannot accept a connection: {e}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// An address that cannot be told is one that others can reach.
fn reach(listener: &TcpListener) -> Reach {
    match listener.local_addr() {
        Ok(address) if address.ip().to_canonical().is_loopback() => Reach::Loopback,
        Ok(_) | Err(_) => Reach::Network,
    }
}

async fn connection(stream: TcpStream, place: OwnedSemaphorePermit, shared: Arc<Shared>) {
    // Answers are small and somebody waits for each of them.
    let _ = stream.set_nodelay(true);
    // Once keys are needed it does not matter whose socket it is; and then they always are.
    let peer = match shared.auth.mode() {
        Mode::Local => peer_of(&stream),
        Mode::Keys => Peer::Foreign { uid: None },
    };
    let client = stream.peer_addr().ok().map(|address| address.ip().to_canonical());
    let (cut, over) = (shared.cut.child_token(), CancellationToken::new());
    let known = Connection { peer, client, cut, over };
    let Some(tls) = &shared.tls else { return speak(stream, known, place, &shared).await };
    match timeout(TLS_HANDSHAKE, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => speak(stream, known, place, &shared).await,
        Ok(Err(e)) => tracing::debug!("a TLS handshake failed: {e}"),
        Err(_elapsed) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// Serves the requests of one connection.
async fn speak<S>(stream: S, known: Connection, place: OwnedSemaphorePermit, shared: &Shared)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = TokioIo::new(Cuttable::new(stream, &known, place));
    let router = TowerToHyperService::new(shared.router.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(known.clone());
        answer(&router, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_READ)
        .serve_connection(stream, service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = shared.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = result {
        tracing::debug!("a connection ended early: {e}");
    }
}

fn answer(
    router: &TowerToHyperService<Router>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response, std::convert::Infallible>> + use<> {
    router.call(request)
}

fn peer_of(stream: &TcpStream) -> Peer {
    let ends = || {
        Ok::<(SocketAddr, SocketAddr), std::io::Error>((stream.peer_addr()?, stream.local_addr()?))
    };
    let uid = ends().and_then(|(client, server)| peer::uid_of_client(client, server));
    match uid {
        Ok(Some(uid)) if uid == rustix::process::geteuid().as_raw() => Peer::Own,
        Ok(uid) => Peer::Foreign { uid },
        Err(e) => {
            tracing::warn!("cannot tell whose connection it is, so it is refused: {e}");
            Peer::Foreign { uid: None }
        }
    }
}
