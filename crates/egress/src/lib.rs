//! The way out of a sandbox: which destinations its policy allows, and how connections get there.
//!
//! A sandbox has no network but its loopback. With a policy, the daemon holds listeners in the sandbox's network
//! namespace that catch every connection and every DNS query. It decides by name, resolves the name itself, and dials
//! from the host. Nothing is routed, so a mistake here refuses a connection and does not open one.
