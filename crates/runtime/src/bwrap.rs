//! bubblewrap. It creates most namespaces and mounts /proc. Everything else is ours: the root is complete, with the
//! same /dev as in the native runtime, and so are the network and the seccomp filter.
//!
//! bwrap itself can map only a single id. So it is executed as root of the sandbox's own user namespace, with its own
//! range of ids, and never has a capability on the host. It leaves a process behind that only waits for the guest; that
//! process is killed as soon as the guest runs.
//!
//! Without root there is only one id, and bwrap creates everything itself: its own user namespace and network, and a
//! /dev whose terminals and memory are unlimited, like everything else in that mode.

use std::io;
use std::path::Path;

use guest_proto::Privilege;

use super::Plan;
use super::grouped::{privilege, shm_bytes};
use super::staged::{Afterwards, Direction, Scene, Technique, UserScene, WithoutRoot, argument};
use sandkeep_core::SandboxId;
use sandkeep_sys::{
    capability,
    launcher::{EntryKind, MASKED, MASKED_DIRS, READ_ONLY},
    namespace::USER_ID,
    stage::{BARE_ROOT, Dev, FILTER_FD, Identity, ROOT},
};
use sandkeep_tree::Root;

#[cfg(test)]
mod tests;

#[derive(Debug, Default)]
pub struct Bwrap;

impl Technique for Bwrap {
    const NAME: &str = "bwrap";
    const PACKAGE: &str = "bubblewrap";
    const OLDEST: (u32, u32) = (0, 5);
    const AFTERWARDS: Afterwards = Afterwards::Stays;
    const WITHOUT_ROOT: WithoutRoot = WithoutRoot::Possible;

    fn direct(&self, scene: &Scene<'_>) -> io::Result<Direction> {
        let mut arguments = arguments(&scene.plan.id, privilege(scene.plan), scene.entry);
        arguments.extend(scene.guest());
        Ok(Direction {
            arguments,
            bundle: None,
            dev: Dev::Stage { shm_bytes: shm_bytes(scene.plan) },
            identity: Identity::Sandbox,
        })
    }

    fn direct_as_user(&self, scene: &UserScene<'_>) -> io::Result<Vec<String>> {
        let mut arguments = user_arguments(scene.plan)?;
        arguments.extend(scene.guest());
        Ok(arguments)
    }
}

/// All of bwrap's arguments up to the command.
fn arguments(id: &SandboxId, privilege: Privilege, groups: EntryKind) -> Vec<String> {
    let mut all = Arguments(Vec::new());
    all.isolate(id);
    match groups {
        EntryKind::V1 => all.push(&["--unshare-cgroup"]),
        // With a cgroup namespace rooted in its own group, the guest could not use its leaves.
        EntryKind::V2 => {}
    }
    all.push(&["--cap-drop", "ALL"]);
    for name in capability::names_of_guest(privilege) {
        all.push(&["--cap-add", &name]);
    }
    // The root is mounted without devices already; only its /dev may have some.
    all.push(&["--dev-bind", ROOT, "/"]);
    all.finish();
    all.0
}

/// The same for a non-root daemon: bwrap creates the user namespace, with the only id, and finds root and template by
/// path.
fn user_arguments(plan: &Plan) -> io::Result<Vec<String>> {
    let mut all = Arguments(Vec::new());
    let user = USER_ID.to_string();
    all.push(&["--unshare-user", "--uid", &user, "--gid", &user]);
    all.isolate(&plan.id);
    all.push(&["--unshare-net", "--unshare-cgroup", "--cap-drop", "ALL"]);
    let files = plan.stored()?;
    let root = match &files.root {
        Root::Dir(path) | Root::Shifted(path) => argument(path)?,
        Root::Overlay { .. } => BARE_ROOT,
    };
    all.push(&["--bind", root, "/"]);
    for bind in files.binds.iter() {
        let target = Path::new("/").join(&bind.target);
        all.push(&["--ro-bind", argument(&bind.source)?, argument(&target)?]);
    }
    all.push(&["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]);
    all.finish();
    Ok(all.0)
}

/// Not every kernel has every file of /proc.
fn on_this_kernel(paths: &[&str]) -> impl Iterator<Item = String> {
    paths.iter().map(|path| format!("/{path}")).filter(|path| Path::new(path).exists())
}

struct Arguments(Vec<String>);

impl Arguments {
    /// Namespaces, and a clean environment.
    fn isolate(&mut self, id: &SandboxId) {
        self.push(&["--unshare-pid", "--unshare-ipc", "--unshare-uts"]);
        self.push(&["--hostname", id.as_str(), "--as-pid-1", "--new-session", "--clearenv"]);
    }

    /// /proc, and the final arguments.
    fn finish(&mut self) {
        self.push(&["--proc", "/proc"]);
        for path in on_this_kernel(&MASKED) {
            self.push(&["--ro-bind", "/dev/null", &path]);
        }
        for path in on_this_kernel(&MASKED_DIRS) {
            self.push(&["--tmpfs", &path, "--remount-ro", &path]);
        }
        for path in on_this_kernel(&READ_ONLY) {
            self.push(&["--ro-bind", &path, &path]);
        }
        self.push(&["--chdir", "/", "--seccomp", &FILTER_FD.to_string(), "--"]);
    }

    fn push(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(|word| (*word).to_owned()));
    }
}
