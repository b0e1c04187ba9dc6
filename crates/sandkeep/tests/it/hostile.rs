//! What one tenant, or code in one sandbox, does to take the daemon from the others.

mod edges;
mod files;
