//! Sandkeep: isolated computers for AI agents. This crate is the program: its command line, configuration and doctor, and
//! the assembly of the other crates into one daemon.
//!
//! The crates in the order of a request: `sandkeep_doors` decodes and authenticates; `sandkeep_broker` admits the
//! request and records the intent in the `sandkeep_store`; the sandbox's supervisor has the `sandkeep_storage` create
//! its volume and a `sandkeep_runtime` launch it through `sandkeep_sys`; `sandkeep_guestlink` executes commands inside
//! and journals their output. `sandkeep_core` is the pure core that all of them share.
//!
//! Programs that want sandboxes without a daemon use [`embed`]:
//!
//! ```no_run
//! # async fn example() -> Result<(), sandkeep_broker::error::Error> {
//! let embedded = sandkeep::embed::Embedded::open(Vec::new()).await?;
//! for runtime in embedded.broker().runtimes() {
//!     println!("{}", runtime.name);
//! }
//! embedded.close().await
//! # }
//! ```

pub mod cli;
pub mod config;
pub mod doctor;

pub use cli::embed;
