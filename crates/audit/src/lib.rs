//! The audit log of a node: who did what, with which result. Append-only files in `<data>/audit`, chained by hashes.
//!
//! ```text
//!   request ──▶ repeats    those that change nothing and repeat within a second are one record
//!           ──▶ log        lock, hash over the record before, one write(2); files, retention, a full disk
//!           ──▶ chain      the form of a line and of a file's header
//!
//!   verify  reads everything and names the first record that is not what was written
//!   reader  reads in order and follows; ocsf puts records into the words of a SIEM
//! ```
//!
//! A record is in the page cache when `record` returns, so it survives the death of the daemon. Every line has the
//! SHA-256 of its record and of the hash before it: nobody can change, remove or insert a record without computing all
//! later hashes anew. Anyone who can write the files can compute them, so the newest hash is shown and can be noted
//! elsewhere.
//!
//! Several processes may append: a lock on `<data>/audit/lock` orders them. Only the daemon begins and removes files.

mod chain;
mod files;
mod log;
mod ocsf;
mod reader;
mod record;
mod repeats;
mod share;
mod verify;

#[cfg(test)]
mod tests;

pub use chain::{Hash, NotAHash};
pub use log::{AuditLog, Bounds, Full, Head, OnFull, Options, Reads, RecordSpace};
pub use ocsf::{OCSF_VERSION, to_ocsf};
pub use reader::{Filter, Reader};
pub use record::{Actor, Effect, Entry, GapReason, Outcome, Record, Request};
pub use verify::{Finding, Report, Severity, verify, verify_against};

/// Where the log is, in the data directory.
pub const AUDIT: &str = "audit";
