//! The front doors. Each decodes and authenticates a request, calls one verb of the broker, and
//! encodes the answer; none of them decides anything.

pub mod auth;
mod front;
pub mod kit;
pub mod mcp;
pub mod ports;
pub mod rest;
mod urule;

pub use front::Front;
