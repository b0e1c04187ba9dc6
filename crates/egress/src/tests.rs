//! The gateway between programs and servers, all on loopback: what it lets pass, and every way around it that we know.
//!
//! Each test has a network of its own with nothing but loopback, which needs root. So servers have the usual ports, and a
//! guard that fails reaches nobody. A connection is given to the gateway with the destination that a sandbox would claim.

mod asking;
mod bounds;
mod cost;
mod direct;
mod inside;
mod plain;
mod proxied;
mod server;
mod support;
mod terminated;
pub(crate) mod world;
