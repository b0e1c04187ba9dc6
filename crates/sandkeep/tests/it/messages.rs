//! Requests over a real NATS server, to real daemons.

mod purista;
mod server;
mod verbs;
