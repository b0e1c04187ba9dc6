//! Doors with a listener of their own: `[flex]` and `[agentfense]`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlexSettings {
    /// Besides `listen`, where the door always is.
    pub listen: Option<SocketAddr>,
    /// Where launched processes are reached.
    pub advertise_addr: IpAddr,
}

/// Nothing is served without an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFenseSettings {
    pub grpc: Option<SocketAddr>,
    /// JSON over HTTP.
    pub rest: Option<SocketAddr>,
}

impl Default for FlexSettings {
    fn default() -> Self {
        Self { listen: None, advertise_addr: IpAddr::V4(Ipv4Addr::LOCALHOST) }
    }
}

impl FlexSettings {
    /// A socket is opened on it, so it must be one address of this machine.
    pub fn contradiction(&self) -> Option<(String, String)> {
        let address = self.advertise_addr;
        let problem = (address.is_unspecified() || address.is_multicast())
            .then(|| format!("{address} is no address that a client can connect to"))?;
        Some(("flex.advertise_addr".to_owned(), problem))
    }
}
