//! What leaves a sandbox for the user's own machine, and what strangers do at the doors.

mod tool_config;
