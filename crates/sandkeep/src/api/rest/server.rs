//! Connections: who may make one, how they are served, and how they end with the daemon.
//!
//! HTTP/1.1 with keep-alive. The owner of the peer's socket is looked up once per connection, before
//! the first request, so the requests themselves pay nothing for it.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware;
use axum::response::IntoResponse;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::correlation;
use super::problem::{Refusal, render};
use crate::broker::Broker;
use crate::limits::{ACCEPT_RETRY, CONNECTIONS_MAX, HEADERS_READ, SHUTDOWN_DRAIN};
use crate::sys::peer;

/// Serves until `shutdown` resolves; then accepts no more, lets requests under way finish for up to
/// [`SHUTDOWN_DRAIN`], and cuts off the rest.
pub async fn serve(listener: TcpListener, broker: Broker, shutdown: impl Future<Output = ()>) {
    let router = super::router(broker.clone());
    let (stop, cut) = (CancellationToken::new(), CancellationToken::new());
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, place) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let connection = connection(stream, router.clone(), stop.clone());
        let cut = cut.clone();
        connections.spawn(async move {
            tokio::select! {
                () = connection => {}
                () = cut.cancelled() => {}
            }
            drop(place);
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

async fn connection(stream: TcpStream, router: Router, stop: CancellationToken) {
    // Answers are small and somebody waits for each of them.
    let _ = stream.set_nodelay(true);
    let router = match check_peer(&stream) {
        Ok(()) => router,
        Err(uid) => refuse_all(uid),
    };
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_READ)
        .serve_connection::<_, TowerToHyperService<Router>>(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = result {
        tracing::debug!("a connection ended early: {e}");
    }
}

/// `Err` holds the stranger's uid, if it can be told.
fn check_peer(stream: &TcpStream) -> Result<(), Option<u32>> {
    let ends = || {
        Ok::<(SocketAddr, SocketAddr), std::io::Error>((stream.peer_addr()?, stream.local_addr()?))
    };
    let uid = ends().and_then(|(client, server)| peer::uid_of_client(client, server));
    match uid {
        Ok(Some(uid)) if uid == rustix::process::geteuid().as_raw() => Ok(()),
        Ok(uid) => Err(uid),
        Err(e) => {
            tracing::warn!("cannot tell whose connection it is, so it is refused: {e}");
            Err(None)
        }
    }
}

/// Answers every request of a stranger's connection with the same refusal.
fn refuse_all(uid: Option<u32>) -> Router {
    let refuse = move |request: Request| async move {
        let refusal = Refusal::ForeignPeer { uid }.into_response();
        render(refusal, request.uri().path())
    };
    Router::new().fallback(refuse).layer(middleware::from_fn(correlation::correlate))
}
