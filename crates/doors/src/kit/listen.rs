//! Connections: which are accepted, how they are served, and how they end when the daemon shuts down.
//!
//! HTTP/1.1 with keep-alive, and HTTP/2 for clients that negotiate it (by ALPN, or with prior knowledge without TLS).
//! The owner of the peer's socket is looked up once per connection, before the first request, so requests pay nothing
//! for it. The TLS handshake runs in the connection's own task, so a slow one delays nobody. Unauthenticated
//! connections make room for authenticated ones: see [`super::places`].

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Version, header};
use futures_util::future::join_all;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Kit;
use super::connection_slots::{ConnectionSlot, ConnectionSlots, Source};
use super::gate::{Connection, Peer};
use super::origins::Reach;
use super::stream_lease::Cuttable;
use super::tls::Tls;
use super::unread::Unread;
use crate::auth::Mode;
use sandkeep_core::limits::{
    ACCEPT_RETRY, CONNECTION_BUFFER_BYTES, HEADERS_READ, REQUEST_WINDOW_BYTES, SHUTDOWN_DRAIN,
    STRANGER_HEAD, TLS_HANDSHAKE,
};
use sandkeep_sys::peer;

/// How often the peer lookup is retried while the process is out of file descriptors.
const PEER_LOOKS_MAX: usize = 50;

/// A listening socket. `None` means without TLS.
pub enum Listener {
    Tcp(TcpListener, Option<Arc<Tls>>),
    Unix(UnixListener, Option<Arc<Tls>>),
}

type Socket = Either<TcpStream, UnixStream>;

/// A listening socket, and the doors behind it.
pub struct Entrance {
    pub listener: Listener,
    pub doors: Router,
}

/// What every connection needs.
struct Shared {
    kit: Kit,
    cut: CancellationToken,
    connections: TaskTracker,
    places: Arc<ConnectionSlots>,
}

/// Serves until `shutdown` resolves. Then it accepts no more connections, lets running requests finish for up to
/// [`SHUTDOWN_DRAIN`], and closes the rest.
pub async fn serve(entrances: Vec<Entrance>, kit: Kit, shutdown: impl Future<Output = ()>) {
    let shared = Arc::new(Shared {
        kit,
        cut: CancellationToken::new(),
        connections: TaskTracker::new(),
        places: ConnectionSlots::new(getrlimit(Resource::Nofile).current),
    });
    let accepting = entrances.into_iter().map(|entrance| entrance.accept_all(&shared));
    tokio::select! {
        () = shutdown => {}
        _ = join_all(accepting) => {}
    }
    let Shared { kit, cut, connections, .. } = shared.as_ref();
    // Otherwise streams would continue for as long as their commands run.
    kit.broker.detach_watchers();
    kit.stop.cancel();
    connections.close();
    if timeout(SHUTDOWN_DRAIN, connections.wait()).await.is_err() {
        tracing::warn!("{} connections did not finish in time", connections.len());
        cut.cancel();
        connections.wait().await;
    }
}

impl Entrance {
    /// Accepts a connection whenever there is room for one.
    async fn accept_all(self, shared: &Arc<Shared>) {
        let Self { listener, doors } = self;
        let reach = listener.reach();
        loop {
            let place = shared.places.room().await;
            let socket = match listener.accept().await {
                Ok(socket) => socket,
                Err(e) => {
                    // Most likely out of file descriptors. The connection stays in the backlog, so an immediate retry
                    // would spin.
                    tracing::warn!("cannot accept a connection: {e}");
                    shared.places.cut_oldest();
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let (tls, shared) = (listener.tls().cloned(), Arc::clone(shared));
            let doors = doors.clone();
            shared.connections.clone().spawn(async move {
                let cut = shared.cut.clone();
                tokio::select! {
                    () = connection(socket, (reach, tls), place, doors, &shared) => {}
                    () = cut.cancelled() => {}
                }
            });
        }
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener, _) => listener.accept().await.map(|(tcp, _)| Either::Left(tcp)),
            Self::Unix(listener, _) => listener.accept().await.map(|(unix, _)| Either::Right(unix)),
        }
    }

    fn tls(&self) -> Option<&Arc<Tls>> {
        let (Self::Tcp(_, tls) | Self::Unix(_, tls)) = self;
        tls.as_ref()
    }

    /// An unknown local address counts as reachable by others.
    fn reach(&self) -> Reach {
        match self {
            Self::Unix(..) => Reach::Loopback,
            Self::Tcp(listener, _) => match listener.local_addr() {
                Ok(address) if address.ip().to_canonical().is_loopback() => Reach::Loopback,
                Ok(_) | Err(_) => Reach::Network,
            },
        }
    }
}

async fn connection(
    socket: Socket,
    (reach, tls): (Reach, Option<Arc<Tls>>),
    permit: OwnedSemaphorePermit,
    doors: Router,
    shared: &Shared,
) {
    // In keys mode the owner of the socket does not matter, and keys mode is permanent.
    let mode = shared.kit.gate.auth.mode();
    let peer = match mode {
        Mode::Local => peer_of(&socket, &shared.places).await,
        Mode::Keys => Peer::Foreign { uid: None },
    };
    let client = match &socket {
        Either::Left(tcp) => {
            // Answers are small and a client waits for each of them.
            let _ = tcp.set_nodelay(true);
            tcp.peer_addr().ok().map(|address| address.ip().to_canonical())
        }
        Either::Right(_) => None,
    };
    let (cut, over) = (shared.cut.child_token(), CancellationToken::new());
    let place = shared.places.enter(permit, stranger(mode, peer, client), &cut);
    let known = Connection { peer, client, reach, cut, over, standing: place.standing().clone() };
    let Some(tls) = tls else { return speak(socket, known, place, doors, shared).await };
    let handshake = timeout(TLS_HANDSHAKE, tls.acceptor().accept(socket));
    let handshake = tokio::select! {
        handshake = handshake => handshake,
        () = known.cut.cancelled() => return,
    };
    match handshake {
        Ok(Ok(stream)) => speak(stream, known, place, doors, shared).await,
        Ok(Err(e)) => tracing::debug!("a TLS handshake failed: {e}"),
        Err(_elapsed) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// The source of an unauthenticated connection; `None` for the daemon's own user.
fn stranger(mode: Mode, peer: Peer, client: Option<IpAddr>) -> Option<Source> {
    match (mode, peer) {
        (Mode::Local, Peer::Own | Peer::Message) => None,
        (Mode::Local, Peer::Foreign { uid }) => Some(Source::User(uid)),
        (Mode::Keys, _) => Some(client.map_or(Source::Unknown, Source::address)),
    }
}

/// Serves the requests of one connection.
async fn speak<S>(
    stream: S,
    known: Connection,
    place: ConnectionSlot,
    doors: Router,
    shared: &Shared,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = TokioIo::new(Cuttable::new(stream, &known, place));
    let router = TowerToHyperService::new(doors);
    let first_head = if known.peer == Peer::Own { HEADERS_READ } else { STRANGER_HEAD };
    let asked = CancellationToken::new();
    let asks = asked.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        asks.cancel();
        request.extensions_mut().insert(known.clone());
        name_host(&mut request);
        router.call(Unread::wrap(request))
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // What waits on a connection counts to its user (`request_memory`), so it has bounds that can be counted with.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_READ);
    builder.http1().max_buf_size(CONNECTION_BUFFER_BYTES);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HEADERS_READ);
    builder.http2().max_send_buf_size(CONNECTION_BUFFER_BYTES);
    builder.http2().initial_connection_window_size(REQUEST_WINDOW_BYTES);
    builder.http2().initial_stream_window_size(REQUEST_WINDOW_BYTES);
    let mut connection = pin!(builder.serve_connection_with_upgrades(stream, service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = shared.kit.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        // HTTP/1.1 has its own header timeout, which starts only once the protocol is detected.
        () = silence(&asked, first_head) => Ok(()),
    };
    if let Err(e) = result {
        tracing::debug!("a connection ended early: {e}");
    }
}

/// Resolves if no request arrives within `max`.
async fn silence(asked: &CancellationToken, max: Duration) {
    if timeout(max, asked.cancelled()).await.is_ok() {
        std::future::pending().await
    }
}

/// Copies `:authority` of an HTTP/2 request to `Host`, where all checks look. If a request has both, the checks require
/// them to agree.
fn name_host(request: &mut Request<Incoming>) {
    if request.version() != Version::HTTP_2 || request.headers().contains_key(header::HOST) {
        return;
    }
    let authority = request.uri().authority().map(|authority| authority.as_str());
    if let Some(Ok(host)) = authority.map(HeaderValue::try_from) {
        request.headers_mut().insert(header::HOST, host);
    }
}

fn uid_of(socket: &Socket) -> io::Result<Option<u32>> {
    match socket {
        Either::Left(tcp) => peer::uid_of_client(tcp.peer_addr()?, tcp.local_addr()?),
        Either::Right(unix) => unix.peer_cred().map(|peer| Some(peer.uid())),
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

async fn peer_of(socket: &Socket, places: &ConnectionSlots) -> Peer {
    let mut uid = uid_of(socket);
    for _ in 0..PEER_LOOKS_MAX {
        if !matches!(&uid, Err(e) if is_out_of_descriptors(e)) {
            break;
        }
        // The lookup needs a file descriptor. The owner must not be refused because strangers hold them all.
        places.cut_oldest();
        tokio::time::sleep(ACCEPT_RETRY).await;
        uid = uid_of(socket);
    }
    match uid {
        Ok(Some(uid)) if uid == rustix::process::geteuid().as_raw() => Peer::Own,
        Ok(uid) => Peer::Foreign { uid },
        Err(e) => {
            tracing::warn!("cannot tell whose connection it is, so it is refused: {e}");
            Peer::Foreign { uid: None }
        }
    }
}
