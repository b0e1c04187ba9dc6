//! Descriptors that are kept open, because opening is what a request costs most: those used last, up to a limit.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sandkeep_core::limits;

/// What a descriptor can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    Read,
    /// Or only read, if the file is being executed.
    Write,
}

pub struct Opened {
    root: Arc<OwnedFd>,
    files: HashMap<(u64, Access), (Arc<OwnedFd>, u64)>,
    /// By when they were used last.
    order: BTreeMap<u64, (u64, Access)>,
    now: u64,
}

impl Opened {
    pub fn new(root: OwnedFd) -> Self {
        Self { root: Arc::new(root), files: HashMap::new(), order: BTreeMap::new(), now: 0 }
    }

    pub fn root(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.root)
    }

    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn get(&mut self, id: u64, access: Access) -> Option<Arc<OwnedFd>> {
        self.now += 1;
        let (file, used) = self.files.get_mut(&(id, access))?;
        self.order.remove(used);
        *used = self.now;
        self.order.insert(self.now, (id, access));
        Some(Arc::clone(file))
    }

    pub fn add(&mut self, id: u64, access: Access, file: OwnedFd) -> Arc<OwnedFd> {
        let file = Arc::new(file);
        self.now += 1;
        let replaced = self.files.insert((id, access), (Arc::clone(&file), self.now));
        if let Some((_, used)) = replaced {
            self.order.remove(&used);
        }
        self.order.insert(self.now, (id, access));
        while self.files.len() > limits::RULEFS_OPEN_MAX {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.files.remove(&oldest);
        }
        file
    }

    pub fn close(&mut self, id: u64) {
        for access in [Access::Read, Access::Write] {
            if let Some((_, used)) = self.files.remove(&(id, access)) {
                self.order.remove(&used);
            }
        }
    }
}
