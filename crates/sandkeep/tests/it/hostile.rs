//! What one tenant, or code in one sandbox, does to take the daemon from the others.

mod accounts;
mod edges;
mod files;
mod kernel;
mod mix;
