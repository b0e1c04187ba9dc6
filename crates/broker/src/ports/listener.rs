//! Sockets of the host that forward to a port of a sandbox: raw TCP, for protocols other than HTTP. On loopback they
//! accept connections only from the user who runs the daemon, like the API itself. The operator may have launched
//! processes listen on another address, where anybody can connect: those processes must ask for credentials themselves.
//!
//! A listener may hold its connections until the port inside is open: for a process that was only just started. It ends
//! with that process.
//!
//! A listener ends when it is asked to, and when its sandbox does not run any more. One that only lost
//! its daemon is opened again by the next, on the same port of the host if nobody took that.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};

use super::{PortStream, connect};
use crate::error::Error;
use crate::execs::processes;
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::{Port, State, limits};
use sandkeep_guestlink::GuestError;
use sandkeep_home::{Listening, UntilOpen};
use sandkeep_sys::peer;

/// The listeners of one sandbox. The lock is held during a change and while it is written to the home, so that the file
/// always matches.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<BTreeMap<Port, Listener>>);

struct Listener {
    address: SocketAddr,
    /// How often the sandbox had stopped when it was opened.
    stops: u64,
    until_open: UntilOpen,
    /// Ends it; cancelled also when it ended by itself.
    end: CancellationToken,
    end_on_drop: DropGuard,
    /// The task that owns the socket.
    server: JoinHandle<()>,
}

impl Listeners {
    pub async fn addresses(&self) -> BTreeMap<Port, SocketAddr> {
        let listeners = self.0.lock().await;
        listeners.iter().map(|(port, listener)| (*port, listener.address)).collect()
    }
}

/// Opens a socket on `host` that forwards to the port, or returns the existing one. One that holds connections replaces
/// one that does not, or that is on another address.
pub(super) async fn listen(
    shared: &Arc<Shared>,
    handle: &Arc<Handle>,
    port: Port,
    (host, until_open): (IpAddr, UntilOpen),
) -> Result<SocketAddr, Error> {
    crate::execs::admitted(handle)?;
    let mut listeners = handle.ports.listeners.0.lock().await;
    let stops = handle.published.borrow().stops;
    let serves = |known: &Listener| {
        until_open == UntilOpen::Close
            || (known.until_open == UntilOpen::Hold && known.address.ip() == host)
    };
    let lives =
        |known: &&Listener| !known.end.is_cancelled() && known.stops == stops && serves(known);
    if let Some(listener) = listeners.get(&port).filter(lives) {
        return Ok(listener.address);
    }
    // One of an earlier run, which is about to notice that it is over.
    listeners.remove(&port);
    if listeners.len() >= limits::PORT_LISTENERS_MAX {
        let limit = limits::PORT_LISTENERS_MAX;
        return Err(Error::LimitReached { what: "listeners of this sandbox", limit });
    }
    let wanted = Listening { port, host, host_port: 0, until_open };
    let address = open(shared, handle, &mut listeners, wanted).await?;
    save(shared, handle, &listeners).await?;
    Ok(address)
}

/// Ends a listener; its open connections continue. When this returns, no more connections are accepted. `false` if
/// there was none.
pub(super) async fn unlisten(
    shared: &Arc<Shared>,
    handle: &Arc<Handle>,
    port: Port,
) -> Result<bool, Error> {
    let mut listeners = handle.ports.listeners.0.lock().await;
    let ended = listeners.remove(&port);
    save(shared, handle, &listeners).await?;
    // Its server may be waiting for the lock, because the sandbox stopped.
    drop(listeners);
    let Some(Listener { end_on_drop, server, .. }) = ended else { return Ok(false) };
    drop(end_on_drop);
    // It ends with the broker at the latest, and its result does not matter.
    let _ = server.await;
    Ok(true)
}

/// Reopens the listeners of an earlier daemon for a sandbox that is still running.
pub(crate) async fn reopen(shared: Arc<Shared>, handle: Arc<Handle>) {
    let id = handle.id.clone();
    let wished = shared.blocking(move |data| data.home(&id).read_listening()).await;
    let wished = match wished {
        Ok(wished) => wished,
        Err(error) => return warn!(id = %handle.id, %error, "cannot tell which ports were open"),
    };
    if wished.is_empty() {
        return;
    }
    let mut listeners = handle.ports.listeners.0.lock().await;
    for wanted in wished.into_iter().take(limits::PORT_LISTENERS_MAX) {
        let port = wanted.port;
        if listeners.contains_key(&port) {
            continue;
        }
        let same = open(&shared, &handle, &mut listeners, wanted).await;
        let opened = match same {
            Ok(address) => Ok(address),
            Err(_taken) => {
                let wanted = Listening { host_port: 0, ..wanted };
                open(&shared, &handle, &mut listeners, wanted).await
            }
        };
        if opened.is_ok() && wanted.until_open == UntilOpen::Hold {
            close_with_process(&shared, &handle, port);
        }
        if let Err(error) = opened {
            warn!(id = %handle.id, %port, %error, "cannot open a port of the host again");
        }
    }
    if let Err(error) = save(&shared, &handle, &listeners).await {
        warn!(id = %handle.id, %error, "cannot write down which ports are open");
    }
}

async fn open(
    shared: &Arc<Shared>,
    handle: &Arc<Handle>,
    listeners: &mut BTreeMap<Port, Listener>,
    wanted: Listening,
) -> Result<SocketAddr, Error> {
    let Listening { port, host, host_port, until_open } = wanted;
    let cannot = |source| Error::CannotListen { port, source };
    let socket = TcpListener::bind((host, host_port)).await.map_err(cannot)?;
    let address = socket.local_addr().map_err(cannot)?;
    let stops = handle.published.borrow().stops;
    let end = CancellationToken::new();
    let end_on_drop = end.clone().drop_guard();
    let run = Run { port, stops, end: end.clone() };
    let carrier = Carrier { handle: Arc::clone(handle), port, until_open, end: end.clone() };
    let server = shared.tasks.spawn(serve(Arc::clone(shared), socket, run, carrier));
    listeners.insert(port, Listener { address, stops, until_open, end, end_on_drop, server });
    Ok(address)
}

async fn save(
    shared: &Arc<Shared>,
    handle: &Handle,
    listeners: &BTreeMap<Port, Listener>,
) -> Result<(), Error> {
    let listening = |(port, listener): (&Port, &Listener)| Listening {
        port: *port,
        host: listener.address.ip(),
        host_port: listener.address.port(),
        until_open: listener.until_open,
    };
    let all: Vec<Listening> = listeners.iter().map(listening).collect();
    let id = handle.id.clone();
    shared.blocking(move |data| data.home(&id).write_listening(&all)).await
}

/// What a listener is for.
struct Run {
    port: Port,
    /// How often the sandbox had stopped when it was opened: one that is started again at once may never be seen stopped.
    stops: u64,
    end: CancellationToken,
}

/// Takes connections until the listener, the sandbox's run or the broker ends.
async fn serve(shared: Arc<Shared>, socket: TcpListener, run: Run, carrier: Carrier) {
    let (handle, Run { port, stops, end }) = (Arc::clone(&carrier.handle), run);
    let places = Arc::new(Semaphore::new(limits::PORT_CONNECTIONS_MAX));
    let mut published = handle.published.clone();
    let mut stopped = std::pin::pin!(published.wait_for(|published| {
        published.stops != stops
            || !matches!(published.status.state(), State::Running | State::Paused)
    }));
    loop {
        // The rest waits in the backlog.
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place.expect("it is never closed"), socket.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = shared.closing.cancelled() => return,
            () = end.cancelled() => return,
            // An error means that it has no supervisor any more, which ends it as well.
            _ = &mut stopped => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, client)) => {
                let shared = Arc::clone(&shared);
                shared.tasks.clone().spawn(carrier.clone().carry(shared, (stream, client), place));
            }
            Err(error) => {
                warn!(id = %handle.id, %port, %error, "cannot accept a connection");
                tokio::time::sleep(limits::ACCEPT_RETRY).await;
            }
        }
    }
    end.cancel();
    drop(socket);
    forget(&shared, &handle).await;
}

/// The sandbox stopped: its listeners are removed, and starting it does not restore them.
async fn forget(shared: &Arc<Shared>, handle: &Handle) {
    let mut listeners = handle.ports.listeners.0.lock().await;
    listeners.retain(|_, listener| !listener.end.is_cancelled());
    let state = handle.published.borrow().status.state();
    if !matches!(state, State::Stopped | State::Running | State::Paused) {
        // Its home is on its way out, or somebody is to look at it.
        return;
    }
    if let Err(error) = save(shared, handle, &listeners).await {
        debug!(id = %handle.id, %error, "cannot write down which ports are open");
    }
}

/// Carries the connections of one listener.
#[derive(Clone)]
struct Carrier {
    handle: Arc<Handle>,
    port: Port,
    until_open: UntilOpen,
    end: CancellationToken,
}

impl Carrier {
    /// One connection: from the host's side to the sandbox's, until both have ended.
    async fn carry(
        self,
        shared: Arc<Shared>,
        (mut outside, client): (TcpStream, SocketAddr),
        _place: OwnedSemaphorePermit,
    ) {
        let Self { handle, port, .. } = &self;
        if let Err(problem) = check_peer(&outside, client) {
            return warn!(id = %handle.id, %port, "a connection was refused: {problem}");
        }
        // Its users write complete messages.
        let _ = outside.set_nodelay(true);
        let mut inside = match self.reach(&shared).await {
            Ok(inside) => inside,
            Err(error) => return debug!(id = %handle.id, %port, %error, "nobody to connect to"),
        };
        if let Err(error) = tokio::io::copy_bidirectional(&mut outside, &mut inside).await {
            debug!(id = %handle.id, %port, %error, "a connection broke");
        }
    }

    /// Connects inside. While nothing listens there it tries again, if it is to hold.
    async fn reach(&self, shared: &Shared) -> Result<PortStream, Error> {
        let deadline = Instant::now() + limits::PORT_HOLD;
        loop {
            let closed = match connect(shared, &self.handle, self.port).await {
                Err(closed @ Error::Guest(GuestError::PortClosed { .. })) => closed,
                answer => return answer,
            };
            if self.until_open == UntilOpen::Close || Instant::now() > deadline {
                return Err(closed);
            }
            tokio::select! {
                () = self.end.cancelled() => return Err(closed),
                () = shared.closing.cancelled() => return Err(closed),
                () = tokio::time::sleep(limits::PORT_HOLD_RETRY) => {}
            }
        }
    }
}

/// Ends a listener when no process that was started for its port runs any more.
pub(super) fn close_with_process(shared: &Arc<Shared>, handle: &Arc<Handle>, port: Port) {
    let (shared, handle) = (Arc::clone(shared), Arc::clone(handle));
    shared.tasks.clone().spawn(async move {
        tokio::select! {
            () = shared.closing.cancelled() => return,
            () = processes::ended_on(&shared, &handle, port) => {}
        }
        if let Err(error) = unlisten(&shared, &handle, port).await {
            debug!(id = %handle.id, %port, %error, "cannot close the port of a process that ended");
        }
    });
}

#[derive(Debug, thiserror::Error)]
enum Stranger {
    #[error("it comes from uid {0}, not from the user who runs the daemon")]
    Uid(u32),
    #[error("nobody holds its other end")]
    Nobody,
    #[error("nobody knows whose it is: {0}")]
    Unknown(#[from] std::io::Error),
}

/// Elsewhere than on loopback, nobody can tell whose connection it is.
fn check_peer(stream: &TcpStream, client: SocketAddr) -> Result<(), Stranger> {
    let local = stream.local_addr()?;
    if !local.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    match peer::uid_of_client(client, local)? {
        Some(uid) if uid == rustix::process::geteuid().as_raw() => Ok(()),
        Some(uid) => Err(Stranger::Uid(uid)),
        None => Err(Stranger::Nobody),
    }
}
