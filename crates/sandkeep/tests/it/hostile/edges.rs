//! What leaves a sandbox for the user's own machine, and what strangers do at the doors.

mod crowd;
mod passes;
mod relay;
mod tool_config;
