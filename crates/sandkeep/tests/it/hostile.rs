//! One sandbox, or one tenant, that tries to take the machine or the daemon from all others.

mod kernel;
