//! Requests over a real NATS server, to real daemons.

mod crowd;
mod foreign;
mod purista;
mod server;
mod verbs;
