//! The leaves of one sandbox: a control group per running exec, used again and again, because
//! removed memory groups linger in the kernel and it has only 65,535 of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::guest::{Leaf, LeafKind, LeafPool};
use crate::sandbox::SandboxId;
use crate::sys::cgroup::{Hierarchy, LeafFiles};

pub struct Leaves {
    cgroups: Arc<dyn Hierarchy>,
    sandbox: SandboxId,
    book: Mutex<Book>,
}

/// Which leaves there are and which are free. A leaf whose exec ended while processes it left in the
/// background go on is neither: it is looked at again when a leaf is needed.
#[derive(Default)]
struct Book {
    made: usize,
    free: Vec<String>,
    lingering: Vec<String>,
}

impl Leaves {
    /// Leaves that an earlier daemon made are taken as lingering until they are found empty.
    pub fn open(cgroups: Arc<dyn Hierarchy>, sandbox: SandboxId) -> io::Result<Arc<Self>> {
        let lingering = cgroups.leaves(sandbox.as_str())?;
        let numbers = lingering.iter().filter_map(|name| name.strip_prefix('l')?.parse().ok());
        let made = numbers.map(|number: usize| number + 1).max().unwrap_or(0);
        let book = Mutex::new(Book { made, free: Vec::new(), lingering });
        Ok(Arc::new(Self { cgroups, sandbox, book }))
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a leaf without processes.
    fn take(&self) -> io::Result<String> {
        let mut book = self.book();
        if let Some(name) = book.free.pop() {
            return Ok(name);
        }
        for at in 0..book.lingering.len() {
            if self.cgroups.leaf_is_empty(self.sandbox.as_str(), &book.lingering[at])? {
                return Ok(book.lingering.swap_remove(at));
            }
        }
        let name = format!("l{}", book.made);
        self.cgroups.make_leaf(self.sandbox.as_str(), &name)?;
        book.made += 1;
        Ok(name)
    }

    fn open_leaf(self: Arc<Self>, name: String) -> io::Result<Box<dyn Leaf>> {
        let sandbox = self.sandbox.as_str();
        let files = self.cgroups.open_leaf(sandbox, &name)?;
        let oom_kills_before = self.cgroups.leaf_oom_kills(sandbox, &name)?;
        Ok(Box::new(NativeLeaf { leaves: self, name, files, oom_kills_before }))
    }

    fn give_back(&self, name: String) {
        let empty = self.cgroups.leaf_is_empty(self.sandbox.as_str(), &name);
        let mut book = self.book();
        match empty {
            Ok(true) => book.free.push(name),
            Ok(false) => book.lingering.push(name),
            // The sandbox is going, and its groups with it.
            Err(_) => {}
        }
    }
}

impl LeafPool for Leaves {
    fn acquire(self: Arc<Self>) -> io::Result<Box<dyn Leaf>> {
        let name = self.take()?;
        self.open_leaf(name)
    }

    fn adopt(self: Arc<Self>, name: &str) -> io::Result<Box<dyn Leaf>> {
        let known = {
            let mut book = self.book();
            let at = book.lingering.iter().position(|lingering| lingering == name);
            at.map(|at| book.lingering.swap_remove(at))
        };
        match known {
            Some(name) => self.open_leaf(name),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

struct NativeLeaf {
    leaves: Arc<Leaves>,
    name: String,
    files: LeafFiles,
    oom_kills_before: u64,
}

impl Leaf for NativeLeaf {
    fn kind(&self) -> LeafKind {
        self.files.kind
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.files.fds.iter().map(AsFd::as_fd).collect()
    }

    fn oom_kills(&self) -> u64 {
        let sandbox = self.leaves.sandbox.as_str();
        let now = self.leaves.cgroups.leaf_oom_kills(sandbox, &self.name);
        now.unwrap_or(0).saturating_sub(self.oom_kills_before)
    }
}

impl Drop for NativeLeaf {
    fn drop(&mut self) {
        self.leaves.give_back(std::mem::take(&mut self.name));
    }
}
