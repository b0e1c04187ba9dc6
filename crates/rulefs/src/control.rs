//! What the daemon and a server say to each other. Every message has a bound; both ends are the same program, but not
//! always the same version of it, so the version is checked first.

use std::io;

use sandkeep_core::limits;
use sandkeep_core::rules::{InvalidRules, Permission, Rule, RuleType, Rules};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Counted up with every change of a message.
pub const VERSION: u32 = 2;

/// How files are served; fixed for the life of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Opening a file takes no message, and its data are in the page cache. New rules also apply to open files and to
    /// mapped pages. For one sandbox on a tree.
    ZeroMessage,
    /// Reads, writes and mappings go straight to the file below. New rules apply to the next open. For several
    /// sandboxes on a tree, and for large files. Needs CAP_SYS_ADMIN and Linux 6.9.
    Passthrough,
}

/// Who else changes the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Writers {
    /// Servers, which tell each other, and the API, which tells them: the kernel may trust what it knows.
    Tell,
    /// Also somebody who works on the tree itself, so that the kernel asks every time. Needs [`Mode::Passthrough`],
    /// because pages would still be trusted otherwise.
    Silent,
}

/// The ids of the files below, and as the mount shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// The first id on disk.
    pub disk_base: u32,
    /// The first id that the mount shows: the host's uid of the sandbox's root, or 0 if the mount is id-mapped when
    /// it is attached.
    pub shown_base: u32,
    pub count: u32,
}

impl Ids {
    /// Every id as it is.
    pub const SAME: Self = Self { disk_base: 0, shown_base: 0, count: u32::MAX };

    /// The owner of files that may not be changed: an id that the sandbox does not map, so that not even its root has
    /// power over them. Without a range there is no such id but the invalid one; for that the kernel answers some
    /// requests with EOVERFLOW instead of EACCES.
    pub(crate) fn nobody(self) -> u32 {
        const OVERFLOW_ID: u32 = 65_534;
        let is_free = |id: &u32| id.checked_sub(self.shown_base).is_none_or(|at| at >= self.count);
        [OVERFLOW_ID, u32::MAX - 1].into_iter().find(is_free).unwrap_or(u32::MAX)
    }
}

/// Rules without what is only for readers: every field is written, so that the format needs no names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireRules(Vec<(String, Permission, Option<RuleType>, i32)>);

impl From<&Rules> for WireRules {
    fn from(rules: &Rules) -> Self {
        let row = |rule: &Rule| (rule.pattern.clone(), rule.permission, rule.kind, rule.priority);
        Self(rules.rules().iter().map(row).collect())
    }
}

impl TryFrom<WireRules> for Rules {
    type Error = InvalidRules;

    fn try_from(wire: WireRules) -> Result<Self, InvalidRules> {
        let rule =
            |(pattern, permission, kind, priority)| Rule { pattern, permission, kind, priority };
        Self::new(wire.0.into_iter().map(rule).collect())
    }
}

/// The first message to a new process, with these descriptors: the tree as a detached mount, the bound control socket,
/// and the board of the tree.
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    pub rules: WireRules,
    pub mode: Mode,
    pub ids: Ids,
    pub writers: Writers,
}

/// Its answer; with the mount if it started.
#[derive(Debug, Serialize, Deserialize)]
pub enum Started {
    /// The number of the connection below /sys/fs/fuse/connections.
    Ready {
        connection: u32,
    },
    Failed {
        step: String,
        errno: i32,
    },
}

/// One request per connection of the control socket.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    ReplaceRules(WireRules),
    /// Somebody else has changed this name in this directory (a path relative to the root).
    Invalidate {
        dir: Vec<u8>,
        name: Vec<u8>,
    },
    Stats,
    /// Removes the recorded refusals.
    Refusals,
    Stop,
    /// Answered with the board of the tree.
    Join,
    /// The permissions of files that the kernel knows, by their inodes.
    Permissions(Vec<u64>),
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    Replaced(Replaced),
    Done,
    Stats(Stats),
    Refusals(Refusals),
    Failed { problem: String },
    Joined { mode: Mode },
    Permissions(Vec<Permission>),
}

/// Where new rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Everywhere, also on open files and mapped pages.
    AtOnce,
    /// When a file is opened next, as after chmod; names and attributes at once.
    NextOpen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    pub effect: Effect,
    /// Known files and directories whose permission became lower.
    pub lowered: u64,
    pub raised: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Requests since the mount was made, or since it was taken over.
    pub requests: u64,
    /// Files and directories that the kernel knows.
    pub nodes: u64,
    pub descriptors: u64,
    pub refusals: u64,
    /// The connection below /sys/fs/fuse/connections.
    pub connection: u32,
    pub version: u32,
    /// How often the mount was taken over from a server that was killed.
    pub takeovers: u32,
}

/// Requests that the rules refused since the last time; the newest are kept. With [`Mode::ZeroMessage`] the kernel
/// itself refuses most opens, by mode bits, without asking the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    pub newest: Vec<Refusal>,
    /// Older ones that were not kept.
    pub omitted: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Relative to the root.
    pub path: Vec<u8>,
    pub action: Action,
    pub permission: Permission,
    /// The process as the server sees it: 0 if it is in a pid namespace that is not below the server's.
    pub pid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    Open,
    Read,
    Write,
    Create,
    Remove,
    Rename,
    Link,
    Attributes,
}

pub fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let bytes = postcard::to_allocvec(message).map_err(io::Error::other)?;
    if bytes.len() > limits::RULEFS_MESSAGE_MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    Ok(bytes)
}

pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(io::Error::other)
}
