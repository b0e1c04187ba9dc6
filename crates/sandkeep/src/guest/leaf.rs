//! Which leaf belongs to which exec, for as long as the exec is not over.
//!
//! The leaf of an exec is in use until its end is known, not until somebody stops looking: a command
//! whose [`Execution`](super::Execution) was dropped runs on in it. So leaves are owned here, beside
//! the connection, and given back when the end of their exec has been collected. One client serves
//! all that the daemon does in a sandbox; when it is dropped, with the sandbox, so are all leaves.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Leaf, LeafKind, LeafPool};
use crate::sandbox::ExecId;

#[derive(Default)]
pub(super) struct HeldLeaves {
    by_exec: Mutex<HashMap<ExecId, Arc<dyn Leaf>>>,
}

impl HeldLeaves {
    fn lock(&self) -> MutexGuard<'_, HashMap<ExecId, Arc<dyn Leaf>>> {
        // Nothing panics while it holds the lock; if it did, the map would still be whole.
        self.by_exec.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn hold(&self, exec: &ExecId, leaf: Arc<dyn Leaf>) {
        self.lock().insert(exec.clone(), leaf);
    }

    pub fn holds(&self, exec: &ExecId) -> bool {
        self.lock().contains_key(exec)
    }

    /// The exec is over, or was never begun.
    pub fn give_back(&self, exec: &ExecId) {
        let leaf = self.lock().remove(exec);
        // Giving back may take a look at the cgroup: not under the lock.
        drop(leaf);
    }

    pub fn oom_kills(&self, exec: &ExecId) -> u64 {
        self.lock().get(exec).map_or(0, |leaf| leaf.oom_kills())
    }
}

/// The leaf of an exec on its way to the guest. Dropped before the request was sent, it is given
/// back; after that the guest may have it, whatever becomes of the call.
pub(super) struct Dispatch {
    leaves: Arc<HeldLeaves>,
    exec: ExecId,
    pub leaf: Arc<dyn Leaf>,
    sent: AtomicBool,
}

impl Dispatch {
    pub fn new(leaves: Arc<HeldLeaves>, exec: ExecId, leaf: Arc<dyn Leaf>) -> Self {
        leaves.hold(&exec, leaf.clone());
        Self { leaves, exec, leaf, sent: AtomicBool::new(false) }
    }

    pub fn sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        if !self.sent.load(Ordering::Relaxed) {
            self.leaves.give_back(&self.exec);
        }
    }
}

/// For runtimes without cgroups: the guest finds trees through /proc, and nobody counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLeaves;

impl LeafPool for NoLeaves {
    fn acquire(self: Arc<Self>) -> io::Result<Box<dyn Leaf>> {
        Ok(Box::new(Self))
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
