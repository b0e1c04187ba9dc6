//! Tests against the real daemon process, on real namespaces, cgroups and filesystems. One binary, so
//! that it links once; one module per promise.

mod bench;
mod cli;
mod client;
mod crash;
mod exec;
#[cfg(feature = "failpoints")]
mod failpoints;
mod isolation;
mod journal;
mod jwt;
mod keys;
mod lifecycle;
mod limits;
mod parallel;
mod run;
mod shells;
mod startup;
mod stress;
mod support;
mod syscalls;
mod tenants;
mod tls;
mod urule;
