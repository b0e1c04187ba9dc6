//! The stage: a short-lived, single-threaded process that prepares all that a foreign tool (bwrap, runc,
//! crun, …) needs to bring a guest to life, and then becomes the tool.
//!
//! ```text
//! daemon ──Staging + descriptors──▶ stage ──execve──▶ tool ──▶ guest (PID 1)
//!        ◀──Failure, or the end────
//! ```
//!
//! It is this same binary with the socket as its stdin. Before the tool can do anything the stage has
//! entered the sandbox's control groups, so whatever the tool forks is found there and can be killed. It
//! has a mount namespace of its own, which ends with the tool; what the tool is to find lies in /tmp of
//! that namespace, the one directory that every Linux has and no tool is installed in:
//!
//! | path | what |
//! |---|---|
//! | [`ROOT`] | the sandbox's root, complete: the volume with mapped ids, the template, perhaps /dev |
//! | [`BUNDLE`] | the bundle, if there is one, read-only |
//! | [`USERS`] | the sandbox's user namespace, for a tool that would else make another |
//! | [`STATE`] | an empty directory for what the tool notes down; it is gone when the tool is |
//!
//! It also has a network namespace of its own, with nothing but loopback, which is the sandbox's. The tool makes none:
//! no tool would set what a sandbox's network may hold.
//!
//! The guest's descriptors are 3 (its listening socket), 4 (itself, as an executable that nobody can
//! change) and 5 (the lifeline, if there is one). The tool hands them on by number.
//!
//! The socket stays open on the way, and the guest closes all that it does not know. So its end says:
//! the guest runs, or nobody is left who could start it.

mod bare;
mod client;
mod process;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::launcher::{EntryKind, Lifeline, RootKind};
use super::overlay;

pub use client::{Stage, StageError, Tool};
#[cfg(any(test, feature = "in-tests"))]
pub use process::before_main;
pub use process::main;

pub const ROOT: &str = "/tmp/root";
pub const BUNDLE: &str = "/tmp/bundle";
pub const STATE: &str = "/tmp/state";
pub const USERS: &str = "/tmp/users";

/// Where a tool that is not executed as root finds the root, if that is an overlay.
pub const BARE_ROOT: &str = "/tmp/m";

/// What the tool has to execute as the guest, once it has mounted /proc.
pub const GUEST: &str = "/proc/self/fd/4";
/// How many descriptors, from 3 on, the tool has to hand on without, and with, a lifeline.
pub const GUEST_FDS: u32 = 2;
pub const GUEST_FDS_WITH_LIFELINE: u32 = 3;
/// Where a tool that loads a filter itself finds it.
pub const FILTER_FD: u32 = 6;

/// What the stage is told. The descriptors that come with it, in this order: the listening socket, the
/// lifeline if there is one, the root, each bind, and the bundle if there is one, as detached mounts, and
/// the entries of the control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staging {
    /// The host's id of the sandbox's root; the range goes up from there.
    pub id_base: u32,
    pub root: RootKind,
    /// Where the binds go, relative to the root.
    pub bind_targets: Vec<String>,
    pub lifeline: Lifeline,
    pub meeting: Meeting,
    pub bundle: Bundle,
    pub entry: EntryKind,
    pub dev: Dev,
    pub identity: Identity,
    /// The tool, by its path, and its arguments.
    pub program: String,
    pub arguments: Vec<String>,
}

/// How the guest and the host come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Meeting {
    /// The host connects. The tool hands descriptors on to the guest.
    Listen,
    /// The guest dials. The tool hands nothing on but its stdin, from which the guest reads its token and
    /// which comes in the place of the listening socket. The stage's socket ends with the stage, and
    /// only the tool's own end says whether the guest runs.
    Dial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bundle {
    None,
    Passed,
}

/// Who makes the sandbox's /dev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dev {
    Tool,
    /// It is part of the root, as the native runtime makes it.
    Stage {
        shm_bytes: u64,
    },
}

/// As whom the tool is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Identity {
    /// As root of the host: it enters the user namespace, or makes one, itself.
    Host,
    /// As root of the sandbox's user namespace, and with a filter to load: it can do nothing to
    /// the host whatever it does.
    Sandbox,
}

/// What a stage is told that is not root: the tool has to find root and template by itself, in a user
/// namespace of one id, and there are no control groups. Its descriptors: the listening socket, and the
/// lifeline if there is one. A filter for the tool to load is made in any case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BareStaging {
    pub lifeline: Lifeline,
    /// What the tool finds as [`BARE_ROOT`].
    pub overlay: Option<NamedOverlay>,
    /// The tool, by its path, and its arguments.
    pub program: String,
    pub arguments: Vec<String>,
}

/// An overlay whose directories are found by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedOverlay {
    pub volume: PathBuf,
    pub layers: PathBuf,
    pub names: overlay::Names,
}

#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Set(Staging),
    Bare(BareStaging),
}

/// What the stage says if it cannot become the tool.
#[derive(Debug, Serialize, Deserialize)]
struct Failure {
    step: String,
    errno: i32,
}

/// The largest message either way.
const MESSAGE_MAX_BYTES: usize = 64 * 1024;
