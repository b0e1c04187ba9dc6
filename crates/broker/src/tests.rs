//! The broker on the mock runtime and the memory store. The mock's world, the store and the volumes are outside of the
//! broker, so they are what a crash of the daemon leaves behind.

mod crashes;
mod events;
mod execs;
mod feed;
mod flaky_store;
mod found;
mod health;
mod lifecycle;
mod manual_clock;
mod named;
mod names;
mod nodes;
mod numbers;
mod remote;
mod sending;
mod spans;
mod stubborn;
mod terms;
mod time;
mod time_crashes;
mod webhooks;
mod world;
