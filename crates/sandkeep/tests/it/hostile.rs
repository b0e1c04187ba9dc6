//! Attempts of one tenant, or of code in one sandbox, to deny the daemon to others.

mod accounts;
mod edges;
mod files;
mod kernel;
mod mix;
mod requests;
