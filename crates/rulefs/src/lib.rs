//! A directory as its rules show it: the FUSE server that keeps the rules of [`sandkeep_core::rules`].
//!
//! | module | contents |
//! |---|---|
//! | `client` | the daemon's side: start, find again, replace rules, stop |
//! | `control` | what daemon and server say to each other |
//! | `process` | the server's process and its keeper |
//! | `serve` | its threads |
//! | `negotiate`, `wire` | the protocol of FUSE |
//! | `fs` | the handlers of requests |
//! | `table`, `opened` | what is known and what is open |
//! | `journal` | what the next server must know if this one is killed |
//! | `notices` | what the kernel is told unasked |
//! | `peers` | what the servers of one tree tell each other |
//!
//! The protocol is written here, and not taken from a crate: what makes a mount fast (opens without a message), and its
//! rules revocable (invalidating open files), is where the existing crates hide requests.

mod client;
mod control;
mod fs;
mod journal;
mod negotiate;
mod notices;
mod opened;
mod peers;
mod process;
mod serve;
mod table;
mod wire;

pub use client::{RulefsError, Server, Start, unusable};
pub use control::{Action, Effect, Ids, Mode, Refusal, Refusals, Replaced, Stats, Writers};
pub use peers::left;
pub use process::main;
