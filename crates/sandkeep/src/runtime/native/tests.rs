//! The conformance suite on the real thing: control groups of version 1 as on this machine, and of
//! version 2 as far as the hierarchy that is mounted goes.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tempfile::TempDir;

use super::{NativeOptions, NativeRuntime};
use crate::home::{Home, Meta};
use crate::runtime::conformance::{Bench, promise_tests, runtime_conformance};
use crate::runtime::{Labels, Lifetime, Plan, Runtime};
use crate::sandbox::{HostLimits, Owner, Resources, SandboxId, SpecDraft};
use crate::storage::Root;
use crate::sys::cgroup::{Hierarchy, V1, V2, cgroup_mounts};
use crate::sys::pidfd;
use crate::template::{HostTemplate, Template};

mod v1 {
    use super::*;
    runtime_conformance!(NativeBench::new(Version::V1));
}

mod v2 {
    use super::*;
    runtime_conformance!(NativeBench::new(Version::V2));
}

/// Not a test: the launcher of the runtimes here, which execute their own test binary for it.
#[test]
#[ignore = "it is executed by the tests of the native runtime"]
fn act_as_launcher() {
    let code = crate::sys::launcher::main(None);
    assert_eq!(code, std::process::ExitCode::SUCCESS);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// One instance: a runtime and its data directory.
struct Instance {
    name: String,
    data: TempDir,
    template: HostTemplate,
    runtime: Arc<NativeRuntime>,
}

struct NativeBench {
    ours: Instance,
    theirs: Instance,
}

impl NativeBench {
    /// `None`, with the reason printed, where this machine has no such hierarchy.
    async fn new(version: Version) -> Option<Self> {
        let ours = Instance::start(version).await;
        let theirs = Instance::start(version).await;
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => Some(Self { ours, theirs }),
            (Err(reason), _) | (_, Err(reason)) => {
                let thread = std::thread::current();
                eprintln!("SKIP {}: {reason}", thread.name().unwrap_or("native"));
                None
            }
        }
    }
}

impl Instance {
    async fn start(version: Version) -> anyhow::Result<Self> {
        anyhow::ensure!(rustix::process::geteuid().is_root(), "not root");
        let data = tempfile::tempdir()?;
        std::fs::create_dir(data.path().join("sandboxes"))?;
        let name = SandboxId::random().as_str()[2..18].to_owned();
        let runtime = NativeRuntime::start_in(
            NativeOptions {
                data_dir: data.path().to_owned(),
                instance: name.clone(),
                launcher: launcher()?,
            },
            hierarchy(version, &name)?,
        )
        .await?;
        let template = HostTemplate::prepare(data.path())?;
        Ok(Self { name, data, template, runtime })
    }

    async fn plan(&self, resources: Resources) -> Plan {
        let id = SandboxId::random();
        let labels = Labels { instance: self.name.clone(), owner: Owner::local() };
        let host = HostLimits { memory_mb: 1024 * 1024, cpus: 64.0, disk_default_mb: None };
        let spec = SpecDraft::default().check(&host).expect("defaults are valid");
        let meta = Meta::new(id.clone(), labels.clone(), spec, "this boot".to_owned());
        let home = Home::new(self.data.path(), id.clone(), self.name.clone());
        home.create(&meta).expect("a home");
        let root = self.data.path().join("volumes").join(id.as_str());
        std::fs::create_dir_all(&root).expect("a volume");
        let root = Root::Dir(root);
        self.template.lay_out(&root).await.expect("a skeleton");
        Plan {
            id,
            labels,
            root,
            binds: self.template.binds(),
            resources,
            privilege: self.template.default_privilege(),
            home: home.path().to_owned(),
            lifetime: Lifetime::Detached,
        }
    }
}

/// This binary, told to run [`act_as_launcher`] and nothing else, on its main thread.
fn launcher() -> std::io::Result<Vec<OsString>> {
    let test = concat!(module_path!(), "::act_as_launcher");
    let test = test.split_once("::").map_or(test, |(_, name)| name);
    let arguments = [test, "--exact", "--ignored", "--nocapture", "--test-threads=1"];
    let mut command = vec![std::env::current_exe()?.into_os_string()];
    command.extend(arguments.map(OsString::from));
    Ok(command)
}

fn hierarchy(version: Version, instance: &str) -> anyhow::Result<Box<dyn Hierarchy>> {
    let mounts = cgroup_mounts()?;
    let opened: Option<Box<dyn Hierarchy>> = match version {
        Version::V1 => V1::open(&mounts, instance)?.map(|v1| Box::new(v1) as _),
        Version::V2 => V2::open(&mounts, instance)?.map(|v2| Box::new(v2) as _),
    };
    opened.ok_or_else(|| anyhow::anyhow!("no hierarchy of cgroup {version:?} is mounted"))
}

#[async_trait]
impl Bench for NativeBench {
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
        let pid = self.ours.runtime.cgroups.guest_pid(id.as_str()).expect("its group is there");
        let pidfd = pidfd::open(pid.expect("it runs")).expect("it runs");
        pidfd::kill(pidfd).expect("root may kill it");
    }

    async fn discard(&self, plan: &Plan) {
        let Root::Dir(root) = &plan.root;
        for dir in [root.as_path(), plan.home.as_path()] {
            remove(dir);
        }
    }
}

fn remove(dir: &Path) {
    std::fs::remove_dir_all(dir).expect("nothing uses it any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_that_was_killed_is_replaced_and_sandboxes_go_on() {
    let Some(bench) = NativeBench::new(Version::V1).await else { return };
    let runtime = &bench.ours.runtime;
    let resources = Resources { memory_mb: 64, cpus: 1.0, pids: 32, disk_mb: None };
    let before = bench.plan(resources.clone()).await;
    runtime.create(&before).await.expect("created");
    runtime.start(&before).await.expect("started");

    let first = runtime.launcher.pid().await;
    pidfd::kill(pidfd::open(first).expect("it runs")).expect("root may kill it");

    let after = bench.plan(resources).await;
    runtime.create(&after).await.expect("created");
    runtime.start(&after).await.expect("a new launcher starts it");
    assert_ne!(runtime.launcher.pid().await, first);
    for plan in [&before, &after] {
        let guest = runtime.connect(&plan.id).await.expect("it runs");
        guest.ping().await.expect("it answers");
        runtime.destroy(&plan.id).await.expect("destroyed");
        bench.discard(plan).await;
    }
}
