//! Sockets of the host that forward to a port of a sandbox: raw TCP, for protocols other than HTTP. They are on
//! loopback and accept connections only from the user who runs the daemon, like the API itself.
//!
//! A listener ends on request, and when its sandbox stops running. If only its daemon ended, the next one opens it
//! again, on the same host port if that is free.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};

use super::connect;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::{Port, State, limits};
use sandkeep_home::Listening;
use sandkeep_sys::peer;

/// The listeners of one sandbox. The lock is held during a change and while it is written to the home, so that the file
/// always matches.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<BTreeMap<Port, Listener>>);

struct Listener {
    address: SocketAddr,
    /// Ends it; also canceled when it ended by itself.
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

/// Opens a socket that forwards to the port, or returns the existing one.
pub(super) async fn listen(
    shared: &Arc<Shared>,
    handle: &Arc<Handle>,
    port: Port,
) -> Result<SocketAddr, Error> {
    crate::execs::admitted(handle)?;
    let mut listeners = handle.ports.listeners.0.lock().await;
    if let Some(listener) = listeners.get(&port).filter(|known| !known.end.is_cancelled()) {
        return Ok(listener.address);
    }
    if listeners.len() >= limits::PORT_LISTENERS_MAX {
        let limit = limits::PORT_LISTENERS_MAX;
        return Err(Error::LimitReached { what: "listeners of this sandbox", limit });
    }
    let address = open(shared, handle, &mut listeners, port, 0).await?;
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
    for Listening { port, host_port } in wished.into_iter().take(limits::PORT_LISTENERS_MAX) {
        if listeners.contains_key(&port) {
            continue;
        }
        let same = open(&shared, &handle, &mut listeners, port, host_port).await;
        let opened = match same {
            Ok(address) => Ok(address),
            Err(_taken) => open(&shared, &handle, &mut listeners, port, 0).await,
        };
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
    port: Port,
    host_port: u16,
) -> Result<SocketAddr, Error> {
    let cannot = |source| Error::CannotListen { port, source };
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, host_port)).await.map_err(cannot)?;
    let address = socket.local_addr().map_err(cannot)?;
    let end = CancellationToken::new();
    let end_on_drop = end.clone().drop_guard();
    let serve = serve(Arc::clone(shared), Arc::clone(handle), socket, port, end.clone());
    let server = shared.tasks.spawn(serve);
    listeners.insert(port, Listener { address, end, end_on_drop, server });
    Ok(address)
}

async fn save(
    shared: &Arc<Shared>,
    handle: &Handle,
    listeners: &BTreeMap<Port, Listener>,
) -> Result<(), Error> {
    let listening = |(port, listener): (&Port, &Listener)| Listening {
        port: *port,
        host_port: listener.address.port(),
    };
    let all: Vec<Listening> = listeners.iter().map(listening).collect();
    let id = handle.id.clone();
    shared.blocking(move |data| data.home(&id).write_listening(&all)).await
}

/// Accepts connections until the listener, the sandbox's run or the broker ends.
async fn serve(
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    socket: TcpListener,
    port: Port,
    end: CancellationToken,
) {
    let mut published = handle.published.clone();
    let mut stopped = std::pin::pin!(published.wait_for(|published| {
        !matches!(published.status.state(), State::Running | State::Paused)
    }));
    loop {
        let accepted = tokio::select! {
            () = shared.closing.cancelled() => return,
            () = end.cancelled() => return,
            // An error means that it has no supervisor any more, which ends it as well.
            _ = &mut stopped => break,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, client)) => {
                let carry = carry(Arc::clone(&shared), Arc::clone(&handle), stream, client, port);
                shared.tasks.spawn(carry);
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
    if state != State::Stopped {
        // Its home is being removed, or was quarantined.
        return;
    }
    if let Err(error) = save(shared, handle, &listeners).await {
        debug!(id = %handle.id, %error, "cannot write down which ports are open");
    }
}

/// One connection: copies between the host's side and the sandbox's until both have ended.
async fn carry(
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    mut outside: TcpStream,
    client: SocketAddr,
    port: Port,
) {
    if let Err(problem) = check_peer(&outside, client) {
        return warn!(id = %handle.id, %port, "a connection was refused: {problem}");
    }
    // Applications write complete messages.
    let _ = outside.set_nodelay(true);
    let mut inside = match connect(&shared, &handle, port).await {
        Ok(inside) => inside,
        Err(error) => return debug!(id = %handle.id, %port, %error, "nobody to connect to"),
    };
    if let Err(error) = tokio::io::copy_bidirectional(&mut outside, &mut inside).await {
        debug!(id = %handle.id, %port, %error, "a connection broke");
    }
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

fn check_peer(stream: &TcpStream, client: SocketAddr) -> Result<(), Stranger> {
    match peer::uid_of_client(client, stream.local_addr()?)? {
        Some(uid) if uid == rustix::process::geteuid().as_raw() => Ok(()),
        Some(uid) => Err(Stranger::Uid(uid)),
        None => Err(Stranger::Nobody),
    }
}
