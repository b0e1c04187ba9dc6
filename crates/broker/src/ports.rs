//! The ports of a sandbox: connections into it, port tokens for others, and sockets of the host that forward to it.
//! None of this needs a network: the guest connects on the sandbox's own loopback.

mod listener;
mod port_token;
mod stream;
mod table;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::Broker;
use super::lifecycle::handle::Handle;
use super::shared::Shared;
use crate::error::Error;
use crate::execs::admitted;
use sandkeep_core::{KeyId, Port, Principal, SandboxId, limits};
use sandkeep_home::UntilOpen;

pub(super) use listener::reopen;
pub use port_token::{PortPass, PortToken, PortTokenProblem};
pub use stream::PortStream;

/// State shared by the ports of one sandbox.
pub(super) struct Ports {
    /// One permit for each further connection.
    places: Arc<Semaphore>,
    listeners: listener::Listeners,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(limits::PORT_CONNECTIONS_MAX)),
            listeners: listener::Listeners::default(),
        }
    }
}

/// What authorizes access to a port.
#[derive(Clone, Copy, Debug)]
pub enum Warrant<'a> {
    /// A principal that may see the sandbox.
    Principal(&'a Principal),
    /// A port token that [`Broker::check_port_token`] accepted.
    PortToken,
}

/// A port as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortView {
    pub port: Port,
    /// Whether a server inside listens on it now.
    pub open: bool,
    /// The socket of the host that forwards to it.
    pub address: Option<SocketAddr>,
}

impl Broker {
    /// Connects to a port inside.
    pub async fn dial(
        &self,
        warrant: Warrant<'_>,
        id: &SandboxId,
        port: Port,
    ) -> Result<PortStream, Error> {
        let handle = match warrant {
            Warrant::Principal(who) => self.shared.find(who, id)?,
            Warrant::PortToken => {
                let missing = || Error::NotFound { id: id.clone() };
                self.shared.supervised(id).ok_or_else(missing)?
            }
        };
        connect(&self.shared, &handle, port).await
    }

    /// Creates a port token, valid for [`limits::PORT_PASS_DEFAULT`] by default, and only as long as `key` is.
    pub fn sign_port_token(
        &self,
        who: &Principal,
        id: &SandboxId,
        port: Port,
        holds: Option<Duration>,
        key: Option<&KeyId>,
    ) -> Result<PortToken, Error> {
        let handle = self.shared.find(who, id)?;
        let holds = holds.unwrap_or(limits::PORT_PASS_DEFAULT);
        if holds.is_zero() || holds > limits::PORT_PASS_MAX {
            let max = limits::PORT_PASS_MAX.as_secs();
            let problem = format!("{} is not from 1 to {max}", holds.as_secs());
            return Err(Error::InvalidField { field: "expires_secs", problem });
        }
        let secret = self.shared.data.secret();
        Ok(port_token::sign(secret, &handle.id, port, Timestamp::now(), holds, key))
    }

    /// The content of a port token, if it is valid for this port. The caller must check that its key is still valid.
    pub fn check_port_token(
        &self,
        id: &SandboxId,
        port: Port,
        token: &str,
    ) -> Result<PortPass, PortTokenProblem> {
        port_token::verify(self.shared.data.secret(), id, port, Timestamp::now(), token)
    }

    /// Opens a socket of the host, on loopback, that forwards to the port.
    pub async fn listen(
        &self,
        who: &Principal,
        id: &SandboxId,
        port: Port,
    ) -> Result<SocketAddr, Error> {
        let handle = self.shared.find(who, id)?;
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        listener::listen(&self.shared, &handle, port, (host, UntilOpen::Close)).await
    }

    /// Opens a socket on this address of the host that leads to the port of a process that was just started. A connection
    /// waits until the process listens; the socket closes when it ends, and outlives the daemon until then.
    pub async fn expose(
        &self,
        who: &Principal,
        id: &SandboxId,
        port: Port,
        host: IpAddr,
    ) -> Result<SocketAddr, Error> {
        let handle = self.shared.find(who, id)?;
        let address =
            listener::listen(&self.shared, &handle, port, (host, UntilOpen::Hold)).await?;
        listener::close_with_process(&self.shared, &handle, port);
        Ok(address)
    }

    pub async fn unlisten(&self, who: &Principal, id: &SandboxId, port: Port) -> Result<(), Error> {
        let handle = self.shared.find(who, id)?;
        if listener::unlisten(&self.shared, &handle, port).await? {
            Ok(())
        } else {
            Err(Error::NoListener { id: id.clone(), port })
        }
    }

    /// The sockets of the host that forward to a sandbox.
    pub async fn listeners(
        &self,
        who: &Principal,
        id: &SandboxId,
    ) -> Result<BTreeMap<Port, SocketAddr>, Error> {
        Ok(self.shared.find(who, id)?.ports.listeners.addresses().await)
    }

    /// The ports on which a server listens, inside or on the host's side.
    pub async fn ports(&self, who: &Principal, id: &SandboxId) -> Result<Vec<PortView>, Error> {
        let handle = self.shared.find(who, id)?;
        let open = table::open_ports(&self.shared, &handle).await?;
        let addresses = handle.ports.listeners.addresses().await;
        let mut all: Vec<Port> = open.iter().chain(addresses.keys()).copied().collect();
        all.sort_unstable();
        all.dedup();
        let view = |port: Port| PortView {
            port,
            open: open.contains(&port),
            address: addresses.get(&port).copied(),
        };
        Ok(all.into_iter().map(view).collect())
    }
}

async fn connect(shared: &Shared, handle: &Handle, port: Port) -> Result<PortStream, Error> {
    if shared.closing.is_cancelled() {
        return Err(Error::ShuttingDown);
    }
    let guest = admitted(handle)?;
    let place = Arc::clone(&handle.ports.places).try_acquire_owned().map_err(|_| {
        let limit = limits::PORT_CONNECTIONS_MAX;
        Error::LimitReached { what: "connections to ports of this sandbox", limit }
    })?;
    let stream = guest.dial(port.get()).await?;
    let activity = Arc::clone(&handle.activity);
    let uses = stream::Uses::new(limits::PORT_IDLE, Box::new(move || activity.touch()));
    Ok(PortStream::new(stream, place, &shared.leaving_ports, uses))
}
