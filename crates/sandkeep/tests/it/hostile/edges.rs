//! Data that leaves a sandbox for the user's own machine, and unauthenticated clients.

mod crowd;
mod passes;
mod tool_config;
