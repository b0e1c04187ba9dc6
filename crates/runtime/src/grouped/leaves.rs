//! The leaves of one sandbox: one cgroup per running exec. They are reused, because removed memory cgroups linger in
//! the kernel and it has only 65,535 of them. Only an exec with limits of its own gets a new leaf, which is removed
//! with it, because the next one's limits differ.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use sandkeep_core::limits::MIB;
use sandkeep_guestlink::{
    ExecLimits,
    leaf::{Leaf, LeafKind, LeafPool},
};
use sandkeep_sys::cgroup::{Hierarchy, LeafFiles, LeafLimits, cpu_quota_micros};

/// Prefixes of reused leaves, and of the others.
const COMMON: char = 'l';
const LIMITED: char = 'm';

pub struct Leaves {
    cgroups: Arc<dyn Hierarchy>,
    /// The sandbox's name there.
    sandbox: String,
    book: Mutex<Book>,
}

/// Which leaves exist and which are free. A leaf whose exec ended while its background processes continue is neither:
/// it is checked again when a leaf is needed.
#[derive(Default)]
struct Book {
    made: usize,
    /// One is kept open, because opening its files takes a good part of an exec.
    ready: Option<Opened>,
    free: Vec<String>,
    lingering: Vec<String>,
}

/// A leaf with its files.
struct Opened {
    name: String,
    files: LeafFiles,
    /// The oom counter when the leaf was last read.
    oom_kills: u64,
}

impl Opened {
    fn is_limited(&self) -> bool {
        self.name.starts_with(LIMITED)
    }
}

impl Leaves {
    /// Makes the first leaf of a sandbox, for its first exec. It is the last of a new sandbox's groups: one that has it
    /// has all of them.
    pub fn make_first(cgroups: &dyn Hierarchy, sandbox: &str) -> io::Result<()> {
        cgroups.make_leaf(sandbox, &format!("{COMMON}0"), &LeafLimits::NONE)
    }

    /// Leaves of an earlier daemon count as lingering until they are found empty.
    pub fn open(cgroups: Arc<dyn Hierarchy>, sandbox: String) -> io::Result<Arc<Self>> {
        let lingering = cgroups.leaves(&sandbox)?;
        let numbers =
            lingering.iter().filter_map(|name| name.strip_prefix([COMMON, LIMITED])?.parse().ok());
        let made = numbers.map(|number: usize| number + 1).max().unwrap_or(0);
        let book = Mutex::new(Book { made, ready: None, free: Vec::new(), lingering });
        Ok(Arc::new(Self { cgroups, sandbox, book }))
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of an empty leaf without limits.
    fn take(&self, book: &mut Book) -> io::Result<String> {
        if let Some(name) = book.free.pop() {
            return Ok(name);
        }
        for at in 0..book.lingering.len() {
            let name = &book.lingering[at];
            if name.starts_with(COMMON) && self.cgroups.leaf_is_empty(&self.sandbox, name)? {
                return Ok(book.lingering.swap_remove(at));
            }
        }
        let name = format!("{COMMON}{}", book.made);
        self.cgroups.make_leaf(&self.sandbox, &name, &LeafLimits::NONE)?;
        book.made += 1;
        Ok(name)
    }

    /// Removes the empty leaves with limits.
    fn sweep(&self, book: &mut Book) {
        let is_left = |name: &String| !name.starts_with(LIMITED) || !self.remove_if_empty(name);
        book.lingering.retain(is_left);
    }

    /// Whether the leaf is gone.
    fn remove_if_empty(&self, name: &str) -> bool {
        let empty = self.cgroups.leaf_is_empty(&self.sandbox, name);
        match empty {
            Ok(true) => self.cgroups.remove_leaf(&self.sandbox, name).is_ok(),
            // If a group does not exist, its sandbox is being removed with all its groups.
            Ok(false) | Err(_) => false,
        }
    }

    /// A separate leaf with limits of its own.
    fn limited(&self, limits: &LeafLimits) -> io::Result<Opened> {
        let name = {
            let mut book = self.book();
            self.sweep(&mut book);
            book.made += 1;
            format!("{LIMITED}{}", book.made - 1)
        };
        let made = self.cgroups.make_leaf(&self.sandbox, &name, limits);
        let opened = made.and_then(|()| self.open_leaf(name.clone(), limits));
        if opened.is_err() && self.cgroups.remove_leaf(&self.sandbox, &name).is_err() {
            self.book().lingering.push(name);
        }
        opened
    }

    fn open_leaf(&self, name: String, limits: &LeafLimits) -> io::Result<Opened> {
        let files = self.cgroups.open_leaf(&self.sandbox, &name, limits)?;
        let oom_kills = files.oom_kills()?;
        Ok(Opened { name, files, oom_kills })
    }

    fn give_back(&self, leaf: Opened) {
        if leaf.is_limited() {
            let Opened { name, files, .. } = leaf;
            drop(files);
            if !self.remove_if_empty(&name) {
                self.book().lingering.push(name);
            }
            return;
        }
        let empty = self.cgroups.leaf_is_empty(&self.sandbox, &leaf.name);
        let mut book = self.book();
        match (empty, &book.ready) {
            (Ok(true), None) => book.ready = Some(leaf),
            (Ok(true), Some(_)) => book.free.push(leaf.name),
            (Ok(false), _) => book.lingering.push(leaf.name),
            // The sandbox is being removed with its groups.
            (Err(_), _) => {}
        }
    }

    fn unlimited(&self) -> io::Result<Opened> {
        let mut book = self.book();
        self.sweep(&mut book);
        match book.ready.take() {
            Some(ready) => Ok(ready),
            None => {
                let name = self.take(&mut book)?;
                self.open_leaf(name, &LeafLimits::NONE)
            }
        }
    }
}

impl LeafPool for Leaves {
    fn acquire(self: Arc<Self>, limits: &ExecLimits) -> io::Result<Box<dyn Leaf>> {
        let limits = LeafLimits {
            memory_bytes: limits.memory_mb.map(|mb| mb.saturating_mul(MIB)),
            cpu_micros: limits.cpus.map(cpu_quota_micros),
            pids: limits.pids,
        };
        let opened =
            if limits == LeafLimits::NONE { self.unlimited()? } else { self.limited(&limits)? };
        Ok(Box::new(GroupLeaf { leaves: self, opened: Some(opened) }))
    }

    fn adopt(self: Arc<Self>, name: &str) -> io::Result<Box<dyn Leaf>> {
        let known = {
            let mut book = self.book();
            let at = book.lingering.iter().position(|lingering| lingering == name);
            at.map(|at| book.lingering.swap_remove(at))
        };
        // No process enters it any more, so its limits do not matter.
        let opened = self.open_leaf(known.ok_or(io::ErrorKind::NotFound)?, &LeafLimits::NONE)?;
        Ok(Box::new(GroupLeaf { leaves: self, opened: Some(opened) }))
    }
}

struct GroupLeaf {
    leaves: Arc<Leaves>,
    /// Present until it is returned.
    opened: Option<Opened>,
}

impl GroupLeaf {
    fn opened(&self) -> &Opened {
        self.opened.as_ref().expect("a leaf is given back only when it is dropped")
    }
}

impl Leaf for GroupLeaf {
    fn kind(&self) -> LeafKind {
        self.opened().files.kind
    }

    fn name(&self) -> &str {
        &self.opened().name
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.opened().files.fds.iter().map(AsFd::as_fd).collect()
    }

    fn oom_kills(&self) -> u64 {
        let opened = self.opened();
        opened.files.oom_kills().unwrap_or(0).saturating_sub(opened.oom_kills)
    }
}

impl Drop for GroupLeaf {
    fn drop(&mut self) {
        let Some(mut opened) = self.opened.take() else { return };
        if let Ok(now) = opened.files.oom_kills() {
            opened.oom_kills = now;
        }
        self.leaves.give_back(opened);
    }
}
