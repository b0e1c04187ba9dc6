//! The leaves of one sandbox: a control group per running exec, used again and again, because
//! removed memory groups linger in the kernel and it has only 65,535 of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::guest::{Leaf, LeafKind, LeafPool};
use crate::sys::cgroup::{Hierarchy, LeafFiles};

pub struct Leaves {
    cgroups: Arc<dyn Hierarchy>,
    /// The sandbox's name there.
    sandbox: String,
    book: Mutex<Book>,
}

/// Which leaves there are and which are free. A leaf whose exec ended while processes it left in the
/// background go on is neither: it is looked at again when a leaf is needed.
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
    /// The oom counter when the leaf was last looked at.
    oom_kills: u64,
}

impl Leaves {
    /// Leaves that an earlier daemon made are taken as lingering until they are found empty.
    pub fn open(cgroups: Arc<dyn Hierarchy>, sandbox: String) -> io::Result<Arc<Self>> {
        let lingering = cgroups.leaves(&sandbox)?;
        let numbers = lingering.iter().filter_map(|name| name.strip_prefix('l')?.parse().ok());
        let made = numbers.map(|number: usize| number + 1).max().unwrap_or(0);
        let book = Mutex::new(Book { made, ready: None, free: Vec::new(), lingering });
        Ok(Arc::new(Self { cgroups, sandbox, book }))
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a leaf without processes.
    fn take(&self, book: &mut Book) -> io::Result<String> {
        if let Some(name) = book.free.pop() {
            return Ok(name);
        }
        for at in 0..book.lingering.len() {
            if self.cgroups.leaf_is_empty(&self.sandbox, &book.lingering[at])? {
                return Ok(book.lingering.swap_remove(at));
            }
        }
        let name = format!("l{}", book.made);
        self.cgroups.make_leaf(&self.sandbox, &name)?;
        book.made += 1;
        Ok(name)
    }

    fn open_leaf(&self, name: String) -> io::Result<Opened> {
        let files = self.cgroups.open_leaf(&self.sandbox, &name)?;
        let oom_kills = files.oom_kills()?;
        Ok(Opened { name, files, oom_kills })
    }

    fn give_back(&self, leaf: Opened) {
        let empty = self.cgroups.leaf_is_empty(&self.sandbox, &leaf.name);
        let mut book = self.book();
        match (empty, &book.ready) {
            (Ok(true), None) => book.ready = Some(leaf),
            (Ok(true), Some(_)) => book.free.push(leaf.name),
            (Ok(false), _) => book.lingering.push(leaf.name),
            // The sandbox is going, and its groups with it.
            (Err(_), _) => {}
        }
    }
}

impl LeafPool for Leaves {
    fn acquire(self: Arc<Self>) -> io::Result<Box<dyn Leaf>> {
        let mut book = self.book();
        let opened = match book.ready.take() {
            Some(ready) => ready,
            None => {
                let name = self.take(&mut book)?;
                self.open_leaf(name)?
            }
        };
        drop(book);
        Ok(Box::new(GroupLeaf { leaves: self, opened: Some(opened) }))
    }

    fn adopt(self: Arc<Self>, name: &str) -> io::Result<Box<dyn Leaf>> {
        let known = {
            let mut book = self.book();
            let at = book.lingering.iter().position(|lingering| lingering == name);
            at.map(|at| book.lingering.swap_remove(at))
        };
        let opened = self.open_leaf(known.ok_or(io::ErrorKind::NotFound)?)?;
        Ok(Box::new(GroupLeaf { leaves: self, opened: Some(opened) }))
    }
}

struct GroupLeaf {
    leaves: Arc<Leaves>,
    /// There until it is given back.
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
