//! Tests against the real daemon process, on real namespaces, cgroups and file systems. One binary, so that it links
//! once; one module per promise.

#[cfg(feature = "agentfense")]
mod agentfense;
mod apply_plan;
mod audit;
mod bench;
mod browser;
mod builds;
mod cli;
mod client;
mod codebases;
mod crash;
mod diff;
mod doctor;
mod documents;
mod engines;
mod events;
mod examples;
mod exec;
#[cfg(feature = "failpoints")]
mod failpoints;
mod files;
#[cfg(feature = "flex")]
mod flex;
mod generators;
mod host_devices;
mod hostile;
mod idempotency;
mod inspector;
mod isolation;
mod journal;
mod jwt;
mod keys;
mod lifecycle;
mod limits;
mod load;
mod mcp;
#[cfg(feature = "nats")]
mod messages;
mod names;
#[cfg(feature = "nats")]
mod nats;
mod network;
mod own_limits;
mod parallel;
mod pausing;
mod ports;
mod processes;
mod quotas;
mod race;
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
mod time;
mod timeouts;
mod tls;
mod tool_calls;
mod tools;
#[cfg(feature = "otlp")]
mod traces;
mod umask;
mod unprivileged;
mod urule;
mod usage;
mod webhooks;
mod workspaces;
mod zfs;
