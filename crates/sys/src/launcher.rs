//! The launcher: a single-threaded process of its own that makes every sandbox, so that the daemon,
//! with its threads and secrets, never clones.
//!
//! ```text
//! daemon ──Launch + descriptors──▶ launcher ──clone──▶ child ──execveat──▶ guest (PID 1)
//!        ◀──Answer + pidfd────────
//! ```
//!
//! It is this same binary, executed with the socket as its stdin, at first and as a replacement
//! alike. It lives in a mount namespace with nothing but an empty root and /dev, because a child's
//! namespace starts as a copy of it; the mounts of a sandbox come from the daemon as detached
//! descriptors. It holds a constant number of descriptors: every clone pays for each open one.
//!
//! A daemon that is not root has a launcher that is not, either. It enters a user namespace before all
//! else and owns every other namespace from there; what of the host a sandbox shows it can only find
//! by path, in a copy of the host's mounts.
//!
//! When the daemon goes, it goes; sandboxes do not notice either.

mod bare;
mod child;
mod client;
mod process;
mod received;

use serde::{Deserialize, Serialize};

use super::overlay;

pub use bare::Standing;
pub(super) use child::Ids;
pub use child::{MASKED, MASKED_DIRS, READ_ONLY};
pub use client::{LaunchError, Launched, Launcher};
pub use guest_proto::Privilege;
pub(super) use process::guest_image;
pub use process::main;
#[cfg(any(test, feature = "in-tests"))]
pub use process::main_on_one_thread;
pub(super) use received::{Received, set_properties};

/// What the launcher is told about one sandbox. The descriptors that come with it, in this order:
/// the listening socket, the lifeline if there is one, and those of its means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    pub hostname: String,
    pub privilege: Privilege,
    /// How much fits into /dev/shm. It counts as the sandbox's memory, so it must be less than all
    /// of that: a full one would leave no memory for the command that removes something.
    pub shm_bytes: u64,
    pub lifeline: Lifeline,
    pub root: RootKind,
    /// Where the binds go, relative to the root.
    pub bind_targets: Vec<String>,
    pub means: Means,
}

/// What a root is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootKind {
    /// One directory.
    Dir,
    /// One whose files hold the sandbox's ids as the host knows them: nothing is left to be mapped.
    Shifted,
    /// The directory of a volume and that of all layers, in this order in the place of the root.
    Overlay(overlay::Names),
}

/// What there is to make a sandbox with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Means {
    /// All that root has. Its descriptors: the root and each bind as detached mounts, then the
    /// entries of the control group.
    Root {
        /// The host's id of the sandbox's root; the range goes up from there.
        id_base: u32,
        entry: EntryKind,
        /// The ranges likely to be used next: their user namespaces are made while nobody waits.
        next_id_bases: Vec<u32>,
    },
    /// One id, and no control group. It has no descriptors.
    User {
        /// Where root and binds are, as the host names them.
        roots: Vec<Vec<u8>>,
        binds: Vec<Vec<u8>>,
        /// By what the guest is found among all processes.
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
    /// Whether it can launch at all.
    Hello,
    Launch(Box<Launch>),
    /// The daemon leaves nothing behind: exit without looking back.
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
