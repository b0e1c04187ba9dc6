//! The stage: a short-lived, single-threaded process that prepares everything that an external tool (bwrap, runc, crun,
//! …) needs to start a guest, and then becomes the tool.
//!
//! ```text
//! daemon ──Staging + descriptors──▶ stage ──execve──▶ tool ──▶ guest (PID 1)
//!        ◀──Failure, or the end────
//! ```
//!
//! It is this same binary with the socket as its stdin. Before the tool can do anything the stage has entered the
//! sandbox's cgroups, so everything that the tool forks is found there and can be killed. It has a mount namespace of
//! its own, which ends with the tool; the tool's input is in /tmp of that namespace, the one directory that every Linux
//! has and no tool is installed in:
//!
//! | path | content |
//! |---|---|
//! | [`ROOT`] | the sandbox's complete root: the volume with mapped ids, the template, possibly /dev |
//! | [`BUNDLE`] | the bundle, if there is one, read-only |
//! | [`USERS`] | the sandbox's user namespace, for a tool that would otherwise create another |
//! | [`STATE`] | an empty directory for the tool's state; it disappears with the tool |
//!
//! It also has a network namespace of its own, with only loopback, which is the sandbox's. The tool creates none,
//! because no tool would set the limits of a sandbox's network.
//!
//! For a daemon without root a stage also enters the network of a running sandbox, to catch what it sends out; that one
//! becomes no tool, and ends.
//!
//! The guest's descriptors are 3 (its listening socket), 4 (itself, as an immutable executable) and 5 (the lifeline, if
//! there is one). The tool passes them on by number.
//!
//! The socket stays open on the way, and the guest closes all descriptors that it does not know. So its end means: the
//! guest runs, or no process is left that could start it.

mod bare;
mod caught;
mod client;
mod process;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::launcher::{Attachment, EntryKind, Lifeline, RootKind};
use super::overlay;

pub use client::{Stage, StageError, Tool};
#[cfg(any(test, feature = "in-tests"))]
pub use process::before_main;
pub use process::main;

pub const ROOT: &str = "/tmp/root";
pub const BUNDLE: &str = "/tmp/bundle";
pub const STATE: &str = "/tmp/state";
pub const USERS: &str = "/tmp/users";

/// Where a tool that is not executed as root finds an overlay root.
pub const BARE_ROOT: &str = "/tmp/m";

/// The guest's path for the tool, once it has mounted /proc.
pub const GUEST: &str = "/proc/self/fd/4";
/// How many descriptors, from 3 on, the tool has to pass on without, and with, a lifeline.
pub const GUEST_FDS: u32 = 2;
pub const GUEST_FDS_WITH_LIFELINE: u32 = 3;
/// The descriptor of the filter, for a tool that loads it itself.
pub const FILTER_FD: u32 = 6;

/// The stage's request. Its descriptors, in this order: the listening socket, the lifeline if there is one, the root,
/// each bind, each attachment, and the bundle if there is one, as detached mounts, and the cgroup entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staging {
    /// The host's uid of the sandbox's root; the range starts there.
    pub id_base: u32,
    pub root: RootKind,
    /// Targets of the binds, relative to the root.
    pub bind_targets: Vec<String>,
    /// Trees besides the template's, in this order.
    pub attachments: Vec<Attachment>,
    pub lifeline: Lifeline,
    pub meeting: Meeting,
    pub bundle: Bundle,
    pub entry: EntryKind,
    pub dev: Dev,
    pub identity: Identity,
    /// The tool's path, and its arguments.
    pub program: String,
    pub arguments: Vec<String>,
}

/// How the guest and the host connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Meeting {
    /// The host connects. The tool passes descriptors on to the guest.
    Listen,
    /// The guest dials. The tool passes on only its stdin, from which the guest reads its token and which replaces the
    /// listening socket. The stage's socket ends with the stage, and only the tool's own end tells whether the guest
    /// runs.
    Dial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bundle {
    None,
    Passed,
}

/// Who creates the sandbox's /dev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dev {
    Tool,
    /// It is part of the root, as in the native runtime.
    Stage {
        shm_bytes: u64,
    },
}

/// The user that the tool is executed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Identity {
    /// Root of the host: it enters or creates the user namespace itself.
    Host,
    /// Root of the sandbox's user namespace, with a filter to load: it can never affect the host.
    Sandbox,
}

/// The request for a non-root stage: the tool has to find root and template by itself, in a user namespace of one id,
/// and there are no cgroups. Its descriptors: the listening socket, and the lifeline if there is one. A filter for the
/// tool to load is always created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BareStaging {
    pub lifeline: Lifeline,
    /// The overlay that the tool finds at [`BARE_ROOT`].
    pub overlay: Option<NamedOverlay>,
    /// The tool's path, and its arguments.
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
    Catch(caught::Catching),
}

/// The stage's answer if it cannot become the tool.
#[derive(Debug, Serialize, Deserialize)]
struct Failure {
    step: String,
    errno: i32,
}

/// Maximum size of a message in either direction.
const MESSAGE_MAX_BYTES: usize = 64 * 1024;
