//! The way out of a sandbox: which destinations its policy allows, and how connections get there.
//!
//! A sandbox has no network but its loopback. With a policy, the daemon holds listeners in the sandbox's network
//! namespace that catch every connection and every DNS query. It decides by name, resolves the name itself, and dials
//! from the host. Nothing is routed, so a mistake here refuses a connection and does not open one.

mod ask;
mod attachment;
mod ca;
mod carry;
mod connection;
mod dns;
mod gateway;
mod http;
mod meter;
mod names;
mod policy;
mod proxy;
mod rate;
mod resolver;
mod rules;
mod sandbox;
mod stream;
mod terminate;
#[cfg(test)]
pub(crate) mod tests;
mod upstream;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

pub use ask::AskError;
pub use attachment::Attachment;
pub use ca::CaError;
pub use gateway::{Gateway, GatewayError, Recorder, Settings, Times, Totals};
pub use rules::{HeaderRule, Rules, Secret, ca_variables, needs_ca, proxy_variables};
pub use sandkeep_outgoing::resolve::{FixedHosts, Resolve, SystemResolver};
pub use sandkeep_sys::egress::Sockets;

/// The address of a sandbox itself, and of its resolver.
pub const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The HTTP proxy that a sandbox sees. It decides as for direct connections.
pub const PROXY: SocketAddr = SocketAddr::V4(SocketAddrV4::new(OWN_ADDRESS, 3128));
