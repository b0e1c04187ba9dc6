//! The way out of a sandbox: which destinations its policy allows, and how connections get there.
//!
//! A sandbox has no network but its loopback. With a policy, the daemon holds listeners in the sandbox's network
//! namespace that catch every connection and every DNS query. It decides by name, resolves the name itself, and dials
//! from the host. Nothing is routed, so a mistake here refuses a connection and does not open one.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use sandkeep_core::SandboxId;
//! use sandkeep_core::network::{Admin, Decision, PendingRequest, Presets};
//! use sandkeep_egress::{Gateway, Recorder, Rules, Settings, Sockets, SystemResolver, Times};
//!
//! struct Printer;
//!
//! impl Recorder for Printer {
//!     fn record(&self, decision: &Decision) {
//!         println!("{decision:?}");
//!     }
//!
//!     fn asked(&self, request: &PendingRequest) {
//!         println!("may it connect to {}?", request.host);
//!     }
//! }
//!
//! # async fn example(sockets: Sockets) -> Result<(), Box<dyn std::error::Error>> {
//! // One for the daemon.
//! let gateway = Gateway::new(Settings {
//!     presets: Arc::new(Presets::built_in()),
//!     admin: Admin::default(),
//!     ca_dir: "/var/lib/example/egress".into(),
//!     roots: sandkeep_outgoing::Roots::default(),
//!     resolver: Arc::new(SystemResolver),
//!     times: Times::default(),
//! });
//! // One for each sandbox: `sockets` are those of its namespace, from `sandkeep_sys::egress::set_up`.
//! let mut rules = Rules::default();
//! rules.policy.allow.push("pypi.org".parse()?);
//! let id = SandboxId::random();
//! let attachment = gateway.open(id, "acme", sockets, rules.clone(), Arc::new(Printer))?;
//! rules.policy.allow.push("files.pythonhosted.org".parse()?);
//! attachment.replace(rules);
//! println!("{:?}", attachment.usage());
//! // Everything of the sandbox ends with it.
//! drop(attachment);
//! # Ok(())
//! # }
//! ```
//!
//! The way of a connection: `connection` decides, `carry` carries it, `upstream` dials. Requests that have to be read pass
//! `http`. See `docs/architecture/egress.md`.

mod admit;
mod ask;
mod attachment;
mod ca;
mod carry;
mod connection;
mod dns;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod gateway;
mod http;
mod java;
mod meter;
mod names;
mod policy;
mod proxy;
mod rate;
mod resolver;
mod rules;
mod sandbox;
mod stream;
mod tenant;
mod terminate;
#[cfg(test)]
pub(crate) mod tests;
mod upstream;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

pub use admit::NotAdmitted;
pub use ask::AskError;
pub use attachment::Attachment;
pub use ca::CaError;
pub use gateway::{Gateway, GatewayError, Recorder, Settings, Times, Totals};
pub use rules::{HeaderRule, Rules, Secret, ca_variables, java_option, needs_ca, proxy_variables};
pub use sandkeep_outgoing::resolve::{FixedHosts, Resolve, SystemResolver};
pub use sandkeep_sys::egress::Sockets;

/// The address of a sandbox itself, and of its resolver.
pub const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The HTTP proxy that a sandbox sees. It decides as for direct connections.
pub const PROXY: SocketAddr = SocketAddr::V4(SocketAddrV4::new(OWN_ADDRESS, 3128));
