//! Addresses of host names.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use sandkeep_core::limits::OUTGOING_LOOKUPS_MAX;
use tokio::sync::Semaphore;

/// Finds the addresses of a host. Only what asks it knows which of them may be used.
#[async_trait::async_trait]
pub trait Resolve: Send + Sync {
    /// All addresses of a name without its final dot; never an empty list.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// As this machine resolves names. It cannot be told to stop: a thread is held until the name is found, or given up,
/// whether somebody waits or not. Whoever asks bounds how many there are.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

#[async_trait::async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((host, 0)).await?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in found.map(|found| found.ip().to_canonical()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            Err(io::Error::new(io::ErrorKind::NotFound, "it has no address"))
        } else {
            Ok(addresses)
        }
    }
}

/// The names that the daemon looks up for itself at a time.
static LOOKUPS: Semaphore = Semaphore::const_new(OUTGOING_LOOKUPS_MAX);

/// The addresses of a name as this machine resolves it, if they are found in this time, waiting for a turn included. A
/// turn lasts until the thread is free again.
pub async fn within(max: Duration, host: &str) -> io::Result<Vec<IpAddr>> {
    let looked_up = async {
        let turn = LOOKUPS.acquire().await.map_err(io::Error::other)?;
        let host = host.to_owned();
        let looking = tokio::spawn(async move {
            let _turn = turn;
            SystemResolver.resolve(&host).await
        });
        looking.await.map_err(io::Error::other)?
    };
    tokio::time::timeout(max, looked_up).await.map_err(|_| io::ErrorKind::TimedOut)?
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
