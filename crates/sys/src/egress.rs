//! The way out of a sandbox, as far as the kernel is concerned: whatever the sandbox sends out of its network namespace
//! is caught there and arrives at sockets that the daemon holds.

use std::os::fd::OwnedFd;

/// The sockets where everything arrives that a sandbox sends out. All are non-blocking.
#[derive(Debug)]
pub struct Sockets {
    /// Listening, for IPv4 and IPv6. A connection's own address (`getsockname`) is where the sandbox wanted to go.
    pub tcp: Vec<OwnedFd>,
    /// DNS queries, for IPv4 and IPv6. A datagram's original destination is its IP_PKTINFO or IPV6_PKTINFO, which is
    /// also the address that an answer has to be sent from.
    pub udp: Vec<OwnedFd>,
}
