//! Addresses of host names.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use sandkeep_core::limits::OUTGOING_RESOLVE;

/// Finds the addresses of a host. Only what asks it knows which of them may be used.
#[async_trait::async_trait]
pub trait Resolve: Send + Sync {
    /// All addresses of a name without its final dot; never an empty list.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// As this machine resolves names.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

#[async_trait::async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let looked_up = tokio::time::timeout(OUTGOING_RESOLVE, tokio::net::lookup_host((host, 0)));
        let found = looked_up.await.map_err(|_| io::ErrorKind::TimedOut)??;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in found.map(|found| found.ip().to_canonical()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        match addresses.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "it has no address")),
            false => Ok(addresses),
        }
    }
}

/// A fixed list of hosts, and no others.
#[derive(Clone, Debug, Default)]
pub struct FixedHosts(pub BTreeMap<String, Vec<IpAddr>>);

#[async_trait::async_trait]
impl Resolve for FixedHosts {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let found = self.0.get(host).filter(|found| !found.is_empty());
        found.cloned().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it has no address"))
    }
}
