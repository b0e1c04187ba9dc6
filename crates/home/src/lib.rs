//! The data directory, and in it one directory per sandbox that the sandbox cannot see.
//!
//! ```text
//! <data>/                    0700, locked by the one daemon that uses it
//!   lock                     flock; holds the daemon's pid
//!   instance                 this directory's own random id
//!   secret                   0600: what passes to ports are signed with
//!   registry.sqlite3         the state store
//!   keys-required            there from the first API key on, for good
//!   events/                  the log of events of this node
//!   batteries/<runtime>.json what `doctor` last found of a runtime's isolation
//!   sandboxes/<id>/          one home per sandbox
//!     meta.json              0600: whose it is and what it is, synced before launch
//!     activity.json          when it was last used, as the reaper noted it down
//!     guest.sock             where the guest listens
//!     door/                  what a container sees of it: the guest, and the socket that it dials
//!     execs/                 the journals of its execs
//!     snapshots.json         a copy of what the registry says of its snapshots
//!     timeline[.1]           its own part of the log of events, a line each
//!     start-up               that its template's start is due, and as which exec
//!     listening.json         which sockets of the host lead to which of its ports
//!   quarantine/<name>        homes that could not be read; nothing deletes them
//!   storage/…                the storage's own
//!   host/{etc,empty}         the shared parts of the `host` template
//!   guest                    the guest's program, for containers
//!   podman-root/             the empty root of Podman's containers
//!   podman-seccomp.json      the system calls that they may make
//! ```
//!
//! `meta.json` is what makes the registry replaceable: without a row, a `ready` sandbox is adopted
//! from it, a `creating` or `destroying` one is removed.
//!
//! Everything here blocks; the broker calls it from threads that may.

mod battery;
mod data_dir;
mod file;
pub mod layout;
mod listening;
mod meta;
mod sandbox_home;
mod secret;
mod start_up;
mod survey;
pub mod timeline;

pub use battery::{Attempted, Battery, BatteryStamp, Verdict};
pub use data_dir::{DataDir, DataDirError, Instance};
pub use listening::{Listening, UntilOpen};
pub use meta::{Meta, Phase, Unreadable};
pub use sandbox_home::{Home, HomeState, make_directory};
pub use secret::Secret;
pub use survey::names;
pub use survey::{Survey, SurveyedHome, survey};

/// The registry, in the data directory.
pub const REGISTRY: &str = "registry.sqlite3";
/// Its presence means that nobody is served without a credential.
pub const KEYS_REQUIRED: &str = "keys-required";
/// Where the guest listens, in the sandbox's home.
pub const GUEST_SOCKET: &str = "guest.sock";
/// Which sandboxes there are, where the daemon has no control groups to say so.
pub const MADE: &str = "made";

const LOCK: &str = "lock";
const INSTANCE: &str = "instance";
const SANDBOXES: &str = "sandboxes";
const QUARANTINE: &str = "quarantine";

#[cfg(test)]
mod tests;
