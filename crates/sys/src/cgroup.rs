//! Cgroups: limits of sandboxes, and which processes belong together.
//!
//! ```text
//! sandkeep/<instance>/<sandbox>/        the guest (v1), nothing (v2)
//!                     ├── guest/        the guest (v2 only: inner groups hold no processes there)
//!                     └── work/         the limits; freezing happens here, so the guest keeps running
//!                         ├── tool/     a technology whose own processes do the sandbox's work
//!                         ├── l0/       a leaf: one running exec and its descendants
//!                         └── l1/ …
//! ```
//!
//! Foreign pids are never written into a group: that costs an RCU grace period (10 ms). A single-threaded child enters
//! by writing `0` into a `tasks` file that we opened (v1), or is cloned into the group (v2).
//!
//! A container engine creates and names the group of a container itself. Everything below works the same ([`around`]):
//! the engine's group is the sandbox's, and its first process is the guest. On v2 the guest has to be moved into
//! `guest/` once, because the engine started it above.

mod files;
mod groupless;
mod v1;
mod v2;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Instant;

use guest_proto::LeafKind;

use sandkeep_core::limits;

pub use files::{MountKind, cgroup_mounts};
pub use groupless::{Groupless, badge, guests};
pub use v1::V1;
pub use v2::V2;

/// The group of [`GroupPlacement::Within`]; no leaf has this name.
const TOOL: &str = "tool";

/// The group of the guest on v2.
const GUEST: &str = "guest";

/// Who creates and removes the group of a sandbox itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    We,
    /// A container engine; everything below is still ours.
    Engine,
}

/// The period of CPU limits.
pub const CPU_PERIOD_MICROS: u64 = 100_000;

/// The quota per period for this many processors, rounded to microseconds.
pub fn cpu_quota_micros(cpus: f64) -> u64 {
    (cpus * CPU_PERIOD_MICROS as f64) as u64
}

/// How often a condition is polled without a pause: the kernel usually needs microseconds.
const LOOKS_AT_ONCE: usize = 1_000;

/// Waits until all tasks of a group are frozen. A task that waits for a CPU, or has used up its CPU quota, is frozen
/// only after it has run once more.
fn until_frozen(mut is_frozen: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let deadline = Instant::now() + limits::FREEZE_SETTLES;
    for look in 0.. {
        if is_frozen()? {
            return Ok(());
        }
        match look < LOOKS_AT_ONCE {
            true => std::thread::yield_now(),
            false if Instant::now() < deadline => std::thread::sleep(limits::FREEZE_LOOK_AGAIN),
            false => break,
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "a process could not be frozen"))
}

/// Limits of one sandbox.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u64,
}

/// Limits of one leaf within its sandbox's; a limit that is left out is the sandbox's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafLimits {
    pub memory_bytes: Option<u64>,
    /// Per [`CPU_PERIOD_MICROS`].
    pub cpu_micros: Option<u64>,
    pub pids: Option<u64>,
}

impl LeafLimits {
    pub const NONE: Self = Self { memory_bytes: None, cpu_micros: None, pids: None };

    /// Checks that these controllers can enforce all of them.
    fn check(&self, has: Controllers) -> io::Result<()> {
        let held = (has.memory || self.memory_bytes.is_none())
            && (has.cpu || self.cpu_micros.is_none())
            && (has.pids || self.pids.is_none());
        if held {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the control groups here cannot hold a limit that was asked for",
            ))
        }
    }
}

/// Resource usage of one sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub memory_bytes: u64,
    pub cpu_micros: u64,
    pub pids: u64,
}

/// What cgroups can do for sandboxes here: which limits are enforced, and whether they can freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controllers {
    pub memory: bool,
    pub cpu: bool,
    pub pids: bool,
    pub freezer: bool,
}

impl Controllers {
    /// Whether any limit can be enforced.
    pub fn hold_any(self) -> bool {
        self.memory || self.cpu || self.pids
    }
}

/// Which of a sandbox's groups contains the processes that make it a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupPlacement {
    /// Outside of the limits and never frozen: our guest, which is small.
    Beside,
    /// Within the limits: a process that executes the sandbox's commands itself, such as a kernel in user space.
    Within,
}

/// How a new process enters a sandbox's group.
#[derive(Debug)]
pub enum Entry {
    /// `tasks` files: the process writes `0` to each.
    V1(Vec<OwnedFd>),
    /// A directory: the process is cloned into it.
    V2(OwnedFd),
    /// There is no group.
    None,
}

/// The files of a leaf.
#[derive(Debug)]
pub struct LeafFiles {
    pub kind: LeafKind,
    /// In the order of the kind.
    pub fds: Vec<OwnedFd>,
    /// The kernel's counter of OOM kills, if this machine limits memory.
    oom_events: Option<OwnedFd>,
}

impl LeafFiles {
    /// The number of OOM kills in this leaf.
    pub fn oom_kills(&self) -> io::Result<u64> {
        let Some(events) = &self.oom_events else { return Ok(0) };
        let mut buffer = [0; 256];
        let len = rustix::io::pread(events, &mut buffer, 0)?;
        files::field(&String::from_utf8_lossy(&buffer[..len]), "oom_kill")
    }
}

/// A kind of hierarchy, with the groups of one instance in it. Names are sandbox ids and leaf names, which contain only
/// `[a-z0-9]`.
///
/// # Behavior
/// - `make`, `make_leaf`, `remove` and `remove_leaf` are idempotent: after a crash in the middle, call them again.
/// - `remove` requires a sandbox without processes, `remove_leaf` a leaf without.
pub trait Hierarchy: Send + Sync {
    /// The kind of its sandboxes' leaves.
    fn kind(&self) -> LeafKind;

    fn controllers(&self) -> Controllers;

    /// The parent directories of the instance's sandboxes, for `doctor`.
    fn roots(&self) -> Vec<PathBuf>;

    fn make(&self, sandbox: &str, limits: &Limits) -> io::Result<()>;

    fn entry(&self, sandbox: &str, place: GroupPlacement) -> io::Result<Entry>;

    /// The processes in the group; none if it does not exist.
    fn pids(&self, sandbox: &str, place: GroupPlacement) -> io::Result<Vec<u32>>;

    /// When this returns, every process but those outside of the limits is frozen.
    fn freeze(&self, sandbox: &str) -> io::Result<()>;

    fn thaw(&self, sandbox: &str) -> io::Result<()>;

    fn remove(&self, sandbox: &str) -> io::Result<()>;

    fn sandboxes(&self) -> io::Result<Vec<String>>;

    fn used(&self, sandbox: &str) -> io::Result<Used>;

    /// Limits that cannot be enforced are refused, and nothing is created.
    fn make_leaf(&self, sandbox: &str, leaf: &str, limits: &LeafLimits) -> io::Result<()>;

    /// A process that enters by these files is subject to the limits that the leaf was created with.
    fn open_leaf(&self, sandbox: &str, leaf: &str, limits: &LeafLimits) -> io::Result<LeafFiles>;

    fn remove_leaf(&self, sandbox: &str, leaf: &str) -> io::Result<()>;

    fn leaves(&self, sandbox: &str) -> io::Result<Vec<String>>;

    fn leaf_is_empty(&self, sandbox: &str, leaf: &str) -> io::Result<bool>;
}

/// Why there are no usable cgroups.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("no cgroup hierarchy with a freezer is mounted (looked in /proc/self/mountinfo)")]
    NotMounted,
    #[error("cannot make control groups beneath {path}: {source}")]
    NotWritable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the control group {path} holds other processes, so it cannot be divided: start the daemon \
         in a container or a group where nothing else runs"
    )]
    Shared { path: PathBuf },
}

/// The hierarchy of this machine: v1 if its controllers are mounted (also in a hybrid layout), otherwise v2.
pub fn open(instance: &str) -> Result<Box<dyn Hierarchy>, Unusable> {
    let mounts = files::cgroup_mounts().map_err(|source| Unusable::NotWritable {
        path: PathBuf::from("/proc/self/mountinfo"),
        source,
    })?;
    if let Some(v1) = V1::open(&mounts, instance)? {
        return Ok(Box::new(v1));
    }
    match V2::open(&mounts, instance)? {
        Some(v2) => Ok(Box::new(v2)),
        None => Err(Unusable::NotMounted),
    }
}

/// The groups of a container that an engine has created, found by one of its processes.
pub struct Around {
    /// Its sandboxes are containers.
    pub hierarchy: Box<dyn Hierarchy>,
    /// The container's name in it.
    pub name: String,
}

/// The hierarchy of the cgroup of a container's process. `None` if the process is in no group of its own.
pub fn around(pid: u32) -> io::Result<Option<Around>> {
    let mounts = files::cgroup_mounts()?;
    let groups = files::groups_of(pid)?;
    if let Some((v1, name)) = V1::around(&mounts, &groups) {
        return Ok(Some(Around { hierarchy: Box::new(v1), name }));
    }
    let found = V2::around(&mounts, &groups)?;
    Ok(found.map(|(v2, name)| Around { hierarchy: Box::new(v2), name }))
}

/// The directories of an instance in every mounted hierarchy; creates nothing.
pub fn instance_dirs(instance: &str) -> io::Result<Vec<PathBuf>> {
    let dir = |mount: files::CgroupMount| mount.path.join(files::OURS).join(instance);
    Ok(files::cgroup_mounts()?.into_iter().map(dir).filter(|dir| dir.is_dir()).collect())
}

/// Removes the empty groups of an instance, and returns the directories where some are left.
pub fn remove_empty(instance: &str) -> io::Result<Vec<PathBuf>> {
    for base in instance_dirs(instance)? {
        for sandbox in files::children(&base)? {
            // The kernel refuses to remove a group with processes; the remaining ones are the result.
            let _ = files::remove(&base.join(sandbox));
        }
        files::remove_instance(&base);
    }
    instance_dirs(instance)
}

/// The kind of hierarchy that [`open`] would use, for people; creates nothing.
pub fn kind() -> io::Result<Option<&'static str>> {
    let mounts = files::cgroup_mounts()?;
    let freezer = |kind: &files::MountKind| match kind {
        files::MountKind::V1(controllers) => controllers.iter().any(|c| c == "freezer"),
        files::MountKind::V2 => false,
    };
    let has = |wanted: &dyn Fn(&files::MountKind) -> bool| mounts.iter().any(|m| wanted(&m.kind));
    Ok(match (has(&freezer), has(&|kind| *kind == files::MountKind::V2)) {
        (true, _) => Some("version 1"),
        (false, true) => Some("version 2"),
        (false, false) => None,
    })
}
