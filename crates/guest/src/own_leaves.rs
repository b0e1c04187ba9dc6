//! Cgroups created by the guest itself, if its kernel is the sandbox's own (gVisor's) and the host's groups have no
//! meaning inside.
//!
//! The hierarchy is mounted once, before any command runs, and unmounted from the namespace at once: only the guest's
//! descriptor refers to it, so no command can leave its group, whatever its user. There is no freezer; a tree is killed
//! like one without a group, but its members are known reliably.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use libc::pid_t;

use crate::sys;

const MEMBERS: &str = "cgroup.procs";

pub struct OwnLeaves {
    root: Rc<OwnedFd>,
    made: u64,
    /// Groups that were released while processes were in them.
    lingering: Rc<RefCell<Vec<String>>>,
}

/// One group. It is removed when it is released, or when the last process has left it.
pub struct OwnLeaf {
    root: Rc<OwnedFd>,
    directory: OwnedFd,
    name: String,
    lingering: Rc<RefCell<Vec<String>>>,
}

impl OwnLeaves {
    /// No other process may run yet.
    pub fn mount() -> io::Result<Self> {
        let root = Rc::new(sys::mount_groups_out_of_sight()?);
        Ok(Self { root, made: 0, lingering: Rc::default() })
    }

    /// A new group, and the file by which a child enters it.
    pub fn leaf(&mut self) -> io::Result<(OwnLeaf, OwnedFd)> {
        self.lingering.borrow_mut().retain(|name| sys::remove_directory(&self.root, name).is_err());
        self.made += 1;
        let name = self.made.to_string();
        sys::make_directory(&self.root, &name)?;
        let directory = sys::open_directory_in(&self.root, &name)?;
        let enter = sys::open_in(&directory, MEMBERS, libc::O_WRONLY)?;
        let (root, lingering) = (Rc::clone(&self.root), Rc::clone(&self.lingering));
        Ok((OwnLeaf { root, directory, name, lingering }, enter))
    }
}

impl OwnLeaf {
    pub fn members(&self) -> Vec<pid_t> {
        let read = || -> io::Result<Vec<u8>> {
            let file = sys::open_in(&self.directory, MEMBERS, libc::O_RDONLY)?;
            let mut text = Vec::new();
            while sys::read_append(file.as_fd(), &mut text, 4096)? > 0 {}
            Ok(text)
        };
        let text = read().unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for OwnLeaf {
    fn drop(&mut self) {
        if sys::remove_directory(&self.root, &self.name).is_err() {
            self.lingering.borrow_mut().push(std::mem::take(&mut self.name));
        }
    }
}
