//! The launcher: a single-threaded process that creates every sandbox, so that the daemon, with its threads and
//! secrets, never clones.
//!
//! ```text
//! daemon ──Launch + descriptors──▶ launcher ──clone──▶ child ──execveat──▶ guest (PID 1)
//!        ◀──Answer + pidfd────────
//! ```
//!
//! It is this same binary, executed with the socket as its stdin, both at first and as a replacement. Its mount
//! namespace contains only an empty root and /dev, because a child's namespace starts as a copy of it; the mounts of a
//! sandbox come from the daemon as detached descriptors. It holds a constant number of descriptors, because every clone
//! pays for each open one.
//!
//! A non-root daemon has a non-root launcher. It first enters a user namespace, which owns every other namespace; it
//! can find the host's directories for a sandbox only by path, in a copy of the host's mounts.
//!
//! It exits with the daemon; sandboxes are not affected by either.

mod attach;
mod bare;
mod child;
mod client;
mod process;
mod received;

use serde::{Deserialize, Serialize};

use super::overlay;

pub use attach::{Attachment, MountAccess, MountIds};
pub use bare::LauncherRights;
pub(super) use child::Ids;
pub use child::{MASKED, MASKED_DIRS, READ_ONLY};
pub use client::{LaunchError, Launched, Launcher};
pub use guest_proto::Privilege;
pub(super) use process::guest_image;
pub use process::main;
#[cfg(any(test, feature = "in-tests"))]
pub use process::main_on_one_thread;
pub(super) use received::{Received, Targets, set_properties};

/// The launcher's request for one sandbox. Its descriptors, in this order: the listening socket, the lifeline if there
/// is one, and those of its means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    pub hostname: String,
    pub privilege: Privilege,
    /// Size of /dev/shm. It counts as the sandbox's memory, so it must be smaller than that: otherwise a full one would
    /// leave no memory for the command that deletes files.
    pub shm_bytes: u64,
    pub lifeline: Lifeline,
    pub root: RootKind,
    /// Targets of the binds, relative to the root.
    pub bind_targets: Vec<String>,
    /// Trees besides the template's, in this order.
    pub attachments: Vec<Attachment>,
    pub means: Means,
}

/// The kind of a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootKind {
    /// One directory.
    Dir,
    /// One directory whose files already have the sandbox's host ids: no mapping is needed.
    Shifted,
    /// The directories of a volume and of all layers, in this order in place of the root.
    Overlay(overlay::Names),
}

/// The means for creating a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Means {
    /// With root. Its descriptors: the root, each bind and each attachment as detached mounts, then the cgroup entries.
    Root {
        /// The host's uid of the sandbox's root; the range starts there.
        id_base: u32,
        entry: EntryKind,
        /// The ranges likely to be used next: their user namespaces are created while the launcher is idle.
        next_id_bases: Vec<u32>,
    },
    /// With one id, and without cgroups. It has no descriptors.
    User {
        /// Host paths of the root, the binds and the attachments.
        roots: Vec<Vec<u8>>,
        binds: Vec<Vec<u8>>,
        attachments: Vec<Vec<u8>>,
        /// Identifies the guest among all processes.
        badge: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifeline {
    None,
    /// A pipe whose end ends the sandbox.
    Passed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    V1,
    V2,
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Asks whether launching is possible at all.
    Hello,
    Launch(Box<Launch>),
    /// The daemon has cleaned up: exit.
    Goodbye,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Ready,
    /// With the pidfd.
    Launched {
        pid: u32,
    },
    /// Nothing runs.
    Failed {
        step: String,
        errno: i32,
    },
}

/// The largest request or answer.
const MESSAGE_MAX_BYTES: usize = 64 * 1024;
