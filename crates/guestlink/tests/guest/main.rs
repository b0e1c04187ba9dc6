//! The guest and its client, over a real socket, with real processes. Needs root, because the guest becomes PID 1 of a
//! namespace.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod commands;
mod dialing;
mod harness;
mod hostile;
mod lifetime;
mod ports;
mod programs;
mod shells;
mod streams;
mod terminals;
mod trees;
