//! The REST door over real sockets, in front of a broker with the mock runtime.

mod events;
mod events_reference;
mod execs;
mod guards;
mod harness;
mod messages;
mod observe;
mod problems;
mod receiver;
mod reference;
mod sandboxes;
mod sessions;
mod webhooks;
