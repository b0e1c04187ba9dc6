//! The conformance suite's bench for every grouped runtime: with cgroups v1, with v2 as far as the mounted hierarchy
//! supports it, or without cgroups.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{GroupedRuntime, HostResources, Starter};
use crate::conformance::{Bench, Instance, discard, unless_skipped};
use crate::{Plan, Runtime};
use sandkeep_core::{Resources, SandboxId};
use sandkeep_sys::{
    cgroup::{Hierarchy, V1, V2, cgroup_mounts},
    pidfd,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
    /// Neither cgroups nor root: see [`as_user`].
    None,
}

/// An unprivileged uid for tests.
const SOMEBODY: u32 = 12_345;

/// The bench of a test that must not be root. As root the test executes itself again as another user; then there is
/// nothing left to do, and the result is `None`.
pub(crate) async fn as_user<S: Starter>(make: Make<S>) -> Option<GroupedBench<S>> {
    if !rustix::process::geteuid().is_root() {
        return GroupedBench::new(Version::None, make).await;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("tests run on threads of their name");
    let scratch = tempfile::tempdir().expect("a temporary directory");
    // This binary's own location may be inaccessible to that user.
    let copy = scratch.path().join("tests");
    std::fs::copy(std::env::current_exe().expect("this binary"), &copy).expect("a copy");
    std::os::unix::fs::chown(scratch.path(), Some(SOMEBODY), Some(SOMEBODY)).expect("theirs");
    let ran = std::process::Command::new(copy)
        .args(["--exact", "--nocapture", test])
        .env("TMPDIR", scratch.path())
        .env("HOME", scratch.path())
        .uid(SOMEBODY)
        .gid(SOMEBODY)
        .output()
        .expect("it runs");
    let (said, complained) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    // A skip is passed on.
    eprint!("{complained}");
    assert!(ran.status.success(), "as uid {SOMEBODY}: {said}{complained}");
    assert!(said.contains("1 passed"), "as uid {SOMEBODY} it did not run: {said}{complained}");
    None
}

/// Creates a runtime with the host's resources.
pub(crate) type Make<S> =
    fn(Arc<HostResources>) -> BoxFuture<'static, anyhow::Result<Arc<GroupedRuntime<S>>>>;

pub(crate) struct GroupedBench<S> {
    pub ours: Instance<GroupedRuntime<S>>,
    theirs: Instance<GroupedRuntime<S>>,
}

impl<S: Starter> GroupedBench<S> {
    /// `None`, with the reason printed, if this machine cannot run it.
    pub async fn new(version: Version, make: Make<S>) -> Option<Self> {
        let start = || Instance::start(|data, name| hierarchy(version, data, name), make);
        let (ours, theirs) = unless_skipped(tokio::join!(start(), start()))?;
        Some(Self { ours, theirs })
    }
}

/// The command line for running one test of this binary alone, on its main thread: how tests execute subcommands of the
/// program.
pub(crate) fn run_test(path: &str) -> std::io::Result<Vec<OsString>> {
    let test = path.split_once("::").map_or(path, |(_, name)| name);
    let arguments = [test, "--exact", "--ignored", "--nocapture", "--test-threads=1"];
    let mut command = vec![std::env::current_exe()?.into_os_string()];
    command.extend(arguments.map(OsString::from));
    Ok(command)
}

fn hierarchy(version: Version, data: &Path, instance: &str) -> anyhow::Result<Box<dyn Hierarchy>> {
    let root = rustix::process::geteuid().is_root();
    anyhow::ensure!(root || version == Version::None, "not root");
    let mounts = cgroup_mounts()?;
    let opened: Option<Box<dyn Hierarchy>> = match version {
        Version::V1 => V1::open(&mounts, instance)?.map(|v1| Box::new(v1) as _),
        Version::V2 => V2::open(&mounts, instance)?.map(|v2| Box::new(v2) as _),
        Version::None => Some(HostResources::groupless(data, instance)?),
    };
    opened.ok_or_else(|| anyhow::anyhow!("no hierarchy of cgroup {version:?} is mounted"))
}

#[async_trait]
impl<S: Starter + 'static> Bench for GroupedBench<S> {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.ours.runtime) as _
    }

    fn neighbour(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.theirs.runtime) as _
    }

    async fn plan(&self, resources: Resources) -> Plan {
        self.ours.plan(resources).await
    }

    async fn neighbour_plan(&self, resources: Resources) -> Plan {
        self.theirs.plan(resources).await
    }

    async fn kill_from_outside(&self, id: &SandboxId) {
        let pid = self.ours.runtime.guest_pid(id).expect("its group is there");
        let pidfd = pidfd::open(pid.expect("it runs")).expect("it runs");
        pidfd::kill(pidfd).expect("root may kill it");
    }

    async fn discard(&self, plan: &Plan) {
        discard(plan);
    }
}
