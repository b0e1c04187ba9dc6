//! How our own guest client keeps an exec's processes together: in a cgroup leaf from a pool of the runtime. Not part
//! of the [`Guest`](super::Guest) contract.
//!
//! The leaf of an exec is in use until its end is known, not until its watcher is gone: a command whose
//! [`Execution`](super::Execution) was dropped continues in it. So leaves are owned here, beside the connection, and
//! returned when the end of their exec was collected. One client serves everything that the daemon does in a sandbox;
//! when it is dropped, with the sandbox, so are all leaves.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandkeep_core::{ExecId, ShellId, api::ExecLimits};

pub use guest_proto::LeafKind;

/// A cgroup leaf that contains an exec's processes. Dropping it returns it. Background processes of the exec may still
/// be in it then: a pool assigns it again only when it is empty.
pub trait Leaf: Send + Sync {
    fn kind(&self) -> LeafKind;

    /// Unique among the sandbox's leaves in use; survives a restart of the daemon.
    fn name(&self) -> &str;

    /// The descriptors for this [`LeafKind`], in its order.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// The number of OOM kills in this leaf since it was acquired.
    fn oom_kills(&self) -> u64;
}

/// Assigns leaves; implemented by a runtime with its cgroups.
pub trait LeafPool: Send + Sync {
    /// A leaf that enforces these limits, or an error.
    fn acquire(self: Arc<Self>, limits: &ExecLimits) -> io::Result<Box<dyn Leaf>>;

    /// The leaf with this name, used by an exec that an earlier daemon started.
    fn adopt(self: Arc<Self>, name: &str) -> io::Result<Box<dyn Leaf>>;
}

/// The holder of a leaf.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    Exec(ExecId),
    Shell(ShellId),
}

impl From<&ExecId> for Holder {
    fn from(id: &ExecId) -> Self {
        Self::Exec(id.clone())
    }
}

impl From<&ShellId> for Holder {
    fn from(id: &ShellId) -> Self {
        Self::Shell(id.clone())
    }
}

struct Held {
    leaf: Arc<dyn Leaf>,
    /// The leaf's oom counter when this holder got it.
    oom_kills: u64,
}

#[derive(Default)]
pub(super) struct HeldLeaves {
    by_holder: Mutex<HashMap<Holder, Held>>,
}

impl HeldLeaves {
    fn lock(&self) -> MutexGuard<'_, HashMap<Holder, Held>> {
        // No code panics while it holds the lock; if it did, the map would still be consistent.
        self.by_holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn hold(&self, holder: impl Into<Holder>, leaf: Arc<dyn Leaf>) {
        self.lock().insert(holder.into(), Held { leaf, oom_kills: 0 });
    }

    /// A command of a shell runs in the shell's leaf.
    pub fn share(&self, shell: &ShellId, exec: &ExecId) {
        let leaf = self.lock().get(&shell.into()).map(|held| Arc::clone(&held.leaf));
        if let Some(leaf) = leaf {
            self.hold_from_now(exec, leaf);
        }
    }

    /// Like `hold`, for a holder that is not responsible for earlier OOM kills in the leaf.
    pub fn hold_from_now(&self, exec: &ExecId, leaf: Arc<dyn Leaf>) {
        let oom_kills = leaf.oom_kills();
        self.lock().insert(exec.into(), Held { leaf, oom_kills });
    }

    /// The leaf with this name, if it is held.
    pub fn named(&self, name: &str) -> Option<Arc<dyn Leaf>> {
        let held = self.lock();
        let found = held.values().find(|held| held.leaf.name() == name);
        found.map(|held| Arc::clone(&held.leaf))
    }

    pub fn holds(&self, holder: impl Into<Holder>) -> bool {
        self.lock().contains_key(&holder.into())
    }

    /// The exec has ended, or never started.
    pub fn give_back(&self, holder: impl Into<Holder>) {
        let leaf = self.lock().remove(&holder.into());
        // Returning a leaf may read its cgroup: not under the lock.
        drop(leaf);
    }

    pub fn oom_kills(&self, exec: &ExecId) -> u64 {
        let held = self.lock();
        held.get(&exec.into())
            .map_or(0, |held| held.leaf.oom_kills().saturating_sub(held.oom_kills))
    }
}

/// The leaf of an exec or a shell on its way to the guest. Dropped before the request was sent, it is returned; after
/// that the guest may have it, even if the call fails.
pub(super) struct Dispatch {
    leaves: Arc<HeldLeaves>,
    holder: Holder,
    pub leaf: Arc<dyn Leaf>,
    sent: AtomicBool,
}

impl Dispatch {
    pub fn new(leaves: Arc<HeldLeaves>, holder: impl Into<Holder>, leaf: Arc<dyn Leaf>) -> Self {
        let holder = holder.into();
        leaves.hold(holder.clone(), leaf.clone());
        Self { leaves, holder, leaf, sent: AtomicBool::new(false) }
    }

    pub fn sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        if !self.sent.load(Ordering::Relaxed) {
            self.leaves.give_back(self.holder.clone());
        }
    }
}

/// For runtimes without cgroups: the guest keeps trees together by itself, and nothing is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLeaves;

impl LeafPool for NoLeaves {
    fn acquire(self: Arc<Self>, limits: &ExecLimits) -> io::Result<Box<dyn Leaf>> {
        if *limits == ExecLimits::default() {
            Ok(Box::new(Self))
        } else {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn adopt(self: Arc<Self>, _name: &str) -> io::Result<Box<dyn Leaf>> {
        Ok(Box::new(Self))
    }
}

impl Leaf for NoLeaves {
    fn kind(&self) -> LeafKind {
        LeafKind::None
    }

    fn name(&self) -> &str {
        ""
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn oom_kills(&self) -> u64 {
        0
    }
}
