//! Tests against the real daemon process, on real namespaces, cgroups and filesystems. One binary, so
//! that it links once; one module per promise.

mod bench;
mod browser;
mod cli;
mod client;
mod crash;
mod doctor;
mod engines;
mod exec;
#[cfg(feature = "failpoints")]
mod failpoints;
mod idempotency;
mod isolation;
mod journal;
mod jwt;
mod keys;
mod lifecycle;
mod limits;
mod load;
mod parallel;
mod pausing;
mod ports;
mod processes;
mod quotas;
mod registry;
mod run;
mod schemathesis;
mod shells;
mod slots;
mod startup;
mod stress;
mod support;
mod syscalls;
mod templates;
mod tenants;
mod terminal;
mod timeouts;
mod tls;
mod tools;
mod unprivileged;
mod urule;
