//! bubblewrap. It makes the namespaces and mounts /proc, and nothing else is left to it: the root comes
//! complete, with the same /dev as that of the native runtime, and the filter is ours.
//!
//! bwrap itself can map a single id. So it is executed as root of the sandbox's own user namespace,
//! with its own range of ids, and never has a capability over the host. It leaves a process behind that
//! only waits for the guest; that is ended as soon as the guest runs.

use std::io;
use std::path::Path;

use guest_proto::Privilege;

use super::grouped::{HOSTNAME, privilege, shm_bytes};
use super::staged::{Afterwards, Direction, Scene, Technique};
use crate::sys::capability;
use crate::sys::launcher::{EntryKind, MASKED, READ_ONLY};
use crate::sys::stage::{Dev, FILTER_FD, Identity, ROOT};

#[cfg(test)]
mod tests;

#[derive(Debug, Default)]
pub struct Bwrap;

impl Technique for Bwrap {
    const NAME: &str = "bwrap";
    const PACKAGE: &str = "bubblewrap";
    const OLDEST: (u32, u32) = (0, 5);
    const AFTERWARDS: Afterwards = Afterwards::Stays;

    fn direct(&self, scene: &Scene<'_>) -> io::Result<Direction> {
        let mut arguments = arguments(privilege(scene.plan), scene.entry);
        arguments.extend(scene.guest());
        Ok(Direction {
            arguments,
            bundle: None,
            dev: Dev::Stage { shm_bytes: shm_bytes(scene.plan) },
            identity: Identity::Sandbox,
        })
    }
}

/// All of bwrap's arguments up to the command.
fn arguments(privilege: Privilege, groups: EntryKind) -> Vec<String> {
    let mut all = Arguments(Vec::new());
    all.push(&["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]);
    match groups {
        EntryKind::V1 => all.push(&["--unshare-cgroup"]),
        // A namespace rooted in the guest's own group would forbid it to fill its leaves.
        EntryKind::V2 => {}
    }
    all.push(&["--hostname", HOSTNAME, "--as-pid-1", "--new-session", "--clearenv"]);
    all.push(&["--cap-drop", "ALL"]);
    for name in capability::names_of_guest(privilege) {
        all.push(&["--cap-add", &name]);
    }
    // The root is mounted without devices already; only its /dev may have some.
    all.push(&["--dev-bind", ROOT, "/", "--proc", "/proc"]);
    for path in on_this_kernel(&MASKED) {
        all.push(&["--ro-bind", "/dev/null", &path]);
    }
    for path in on_this_kernel(&READ_ONLY) {
        all.push(&["--ro-bind", &path, &path]);
    }
    all.push(&["--chdir", "/", "--seccomp", &FILTER_FD.to_string(), "--"]);
    all.0
}

/// Not every kernel has every file of /proc.
fn on_this_kernel(paths: &[&str]) -> impl Iterator<Item = String> {
    paths.iter().map(|path| format!("/{path}")).filter(|path| Path::new(path).exists())
}

struct Arguments(Vec<String>);

impl Arguments {
    fn push(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(|word| (*word).to_owned()));
    }
}
