//! A network of the test's own. A guard that is broken, or that a test takes away, then lets nothing reach anybody.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsFd as _;

use sandkeep_sys::namespace;

/// From here on this thread, and the threads and programs that it starts, have a network with nothing but loopback. Needs
/// root; without it the tests that call this are skipped.
pub fn alone() {
    thread_local! {
        static IS_ALONE: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_ALONE.replace(true) && rustix::process::geteuid().is_root() {
        let proc = File::open("/proc").expect("/proc");
        namespace::enter_network(proc.as_fd()).expect("root can have a network of its own");
    }
}
