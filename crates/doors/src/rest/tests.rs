//! The REST door over real sockets, in front of a broker with the mock runtime.

mod execs;
mod guards;
mod harness;
mod messages;
mod observe;
mod problems;
mod reference;
mod sandboxes;
mod sessions;
