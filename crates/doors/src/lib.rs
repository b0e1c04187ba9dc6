//! The front doors. Each door decodes and authenticates a request, calls one method of the broker, and encodes the
//! answer; no door makes decisions of its own. [`kit`] has what a new dialect needs, and [`Front`] serves the existing
//! ones:
//!
//! ```
//! use sandkeep_broker::Broker;
//! use sandkeep_doors::Front;
//!
//! async fn serve(front: Front, broker: Broker) -> std::io::Result<()> {
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//!     front.serve(listener, broker, std::future::pending()).await;
//!     Ok(())
//! }
//! ```

#[cfg(feature = "agentfense")]
mod agentfense;
pub mod auth;
pub mod commands;
#[cfg(feature = "connect")]
mod connect;
#[cfg(feature = "flex")]
mod flex;
mod front;
#[cfg(feature = "grpc")]
mod grpc;
/// Doors for fuzzers.
#[cfg(all(feature = "fuzzing", feature = "flex"))]
pub mod fuzz {
    pub use crate::flex::fuzz::stream_request;
}
pub mod kit;
#[cfg(feature = "mcp")]
pub mod mcp;
pub mod ports;
pub mod rest;
#[cfg(any(feature = "connect", feature = "grpc"))]
mod rpc;
#[cfg(feature = "urule")]
mod urule;

pub use front::{Front, MessageDoor, OwnDoor};
