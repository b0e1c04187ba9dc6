//! Doors with listeners of their own.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::listen;
use crate::cli::failure::Failure;
use crate::cli::print;
use crate::config::Settings;
use sandkeep_doors::OwnDoor;

/// A listener that leads to one door alone.
pub struct Entrance {
    pub door: OwnDoor,
    pub listener: TcpListener,
    address: SocketAddr,
    name: &'static str,
}

impl Entrance {
    /// Tells where it is, as with port 0 only we know.
    pub fn announce(&self) {
        let _ = print::line(&format!("{} listens on {}", self.name, self.address));
    }
}

/// A door that the settings can give an address.
struct Choice {
    key: &'static str,
    address: Option<SocketAddr>,
    /// What it is called; `None` if this build has no such door.
    door: Option<(OwnDoor, &'static str)>,
}

fn choices(settings: &Settings) -> [Choice; 3] {
    [
        Choice {
            key: "flex.listen",
            address: settings.flex.listen,
            #[cfg(feature = "flex")]
            door: Some((OwnDoor::Flex, "flex")),
            #[cfg(not(feature = "flex"))]
            door: None,
        },
        Choice {
            key: "agentfense.grpc",
            address: settings.agentfense.grpc,
            #[cfg(feature = "agentfense")]
            door: Some((OwnDoor::AgentFenseGrpc, "agentfense gRPC")),
            #[cfg(not(feature = "agentfense"))]
            door: None,
        },
        Choice {
            key: "agentfense.rest",
            address: settings.agentfense.rest,
            #[cfg(feature = "agentfense")]
            door: Some((OwnDoor::AgentFenseRest, "agentfense REST")),
            #[cfg(not(feature = "agentfense"))]
            door: None,
        },
    ]
}

/// The addresses that the settings name for single doors.
pub fn addresses(settings: &Settings) -> impl Iterator<Item = SocketAddr> {
    choices(settings).into_iter().filter_map(|choice| choice.address)
}

/// Opens the listeners, and checks that sockets can be opened where launched processes are to be reached.
pub async fn open(settings: &Settings) -> Result<Vec<Entrance>, Failure> {
    let mut all = Vec::new();
    for Choice { key, address, door } in choices(settings) {
        let Some(address) = address else { continue };
        let Some((door, name)) = door else {
            let problem = format!("{key} needs a build with that door");
            return Err(Failure::Usage { problem });
        };
        let (listener, address) = listen(address).await?;
        all.push(Entrance { door, listener, address, name });
    }
    let launched = settings.flex.advertise_addr;
    if !launched.to_canonical().is_loopback() {
        drop(listen((launched, 0).into()).await?);
        tracing::warn!(
            "processes that Flex's clients launch can be reached by others on {launched}; \
             they must ask for credentials themselves"
        );
    }
    Ok(all)
}
