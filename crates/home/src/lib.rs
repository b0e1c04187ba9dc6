//! The data directory, and in it one directory per sandbox that is invisible to the sandbox.
//!
//! ```text
//! <data>/                    0700, locked by the one daemon that uses it
//!   lock                     flock; contains the daemon's pid
//!   instance                 this directory's own random id
//!   secret                   0600: the key that signs port tokens
//!   secrets.key[.wrapped]    0600: the key that encrypts the secrets of sandboxes, or what a KMS command made of it
//!   egress/                  the certificate authority of this daemon, for hosts whose requests it reads
//!   registry.sqlite3         the state store
//!   keys-required            exists from the first API key on, permanently
//!   events/                  the event log of this node
//!   batteries/<runtime>.json `doctor`'s last results for a runtime's isolation
//!   sandboxes/<id>/          one home per sandbox
//!     meta.json              0600: its owner and its spec, synced before a create is answered
//!     activity.json          when it was last used, recorded by the reaper
//!     guest.sock             the guest's listening socket
//!     door/                  the part visible in a container: the guest, and the socket that it dials
//!     execs/                 the journals of its execs
//!     snapshots.json         a copy of the registry's records of its snapshots
//!     timeline[.1]           its own part of the event log, one event per line
//!     network.log[.1]        what was decided about its connections
//!     secrets                0600: the values of its secrets, encrypted
//!     start-up               its template's start command is due, with the exec's id
//!     listening.json         which sockets of the host forward to which of its ports
//!   quarantine/<name>        homes that could not be read; never deleted automatically
//!   storage/…                the storage's own
//!   host/{etc,empty}         the shared parts of the `host` template
//!   guest                    the guest's program, for containers
//!   podman-root/             the empty root of Podman's containers
//!   podman-seccomp.json      their seccomp filter
//! ```
//!
//! `meta.json` makes the registry replaceable: a `ready` sandbox without a row is adopted from it, a `creating` or
//! `destroying` one is removed.
//!
//! Everything here blocks; the broker calls it from threads that may block.

mod battery;
mod data_dir;
mod file;
pub mod layout;
mod listening;
mod meta;
pub mod network_log;
mod rotating;
mod sandbox_home;
mod sealed;
mod secret;
mod start_up;
mod survey;
pub mod timeline;

pub use battery::{Attempted, Battery, BatteryStamp, Verdict};
pub use data_dir::{DataDir, DataDirError, Instance};
pub use listening::{Listening, UntilOpen};
pub use meta::{Meta, Phase, Unreadable};
pub use sandbox_home::{Home, HomeState, make_directory};
pub use sealed::{KEY_BYTES, StoredKey};
pub use secret::Secret;
pub use survey::names;
pub use survey::{Survey, SurveyedHome, survey};

/// The registry, in the data directory.
pub const REGISTRY: &str = "registry.sqlite3";
/// If this exists, every request needs credentials.
pub const KEYS_REQUIRED: &str = "keys-required";
/// The guest's listening socket, in the sandbox's home.
pub const GUEST_SOCKET: &str = "guest.sock";
/// Records which sandboxes exist, if the daemon has no cgroups for that.
pub const MADE: &str = "made";
/// The directory of the sockets of servers that keep the rules of codebases.
pub const RULES: &str = "rules";

const LOCK: &str = "lock";
const INSTANCE: &str = "instance";
const SANDBOXES: &str = "sandboxes";
const QUARANTINE: &str = "quarantine";

#[cfg(test)]
mod tests;
