//! The gateway between programs and servers, all on loopback: what it lets pass, and every way around it that we know.
//!
//! Servers have addresses of 127.0.0.0/8 and the usual ports, so that tests need root. A connection is given to the
//! gateway with the destination that a sandbox would claim.

mod asking;
mod bounds;
mod cost;
mod direct;
mod inside;
mod plain;
mod proxied;
mod server;
mod terminated;
pub(crate) mod world;
