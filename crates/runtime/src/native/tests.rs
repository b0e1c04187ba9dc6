//! The conformance suite on the real thing.

mod vm;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Native;
use crate::Runtime;
use crate::conformance::{
    Bench, Setuid, keeps_above_layers, keeps_above_many_layers, promise_tests, runtime_conformance,
};
use crate::grouped::bench::{GroupedBench, Version, as_user, run_test};
use crate::grouped::{GroupedRuntime, HostResources};
use sandkeep_core::Resources;
use sandkeep_sys::pidfd;

mod v1 {
    use super::*;
    runtime_conformance!(GroupedBench::new(Version::V1, native));
}

mod v2 {
    use super::*;
    runtime_conformance!(GroupedBench::new(Version::V2, native));
}

mod user {
    use super::*;
    runtime_conformance!(as_user(native));
}

/// Not a test: the launcher of the runtimes here, which execute their own test binary for it.
#[test]
#[ignore = "it is executed by the tests of the native runtime"]
fn act_as_launcher() {
    let code = sandkeep_sys::launcher::main_on_one_thread();
    assert_eq!(code, std::process::ExitCode::SUCCESS);
}

fn native(
    host_resources: Arc<HostResources>,
) -> BoxFuture<'static, anyhow::Result<Arc<GroupedRuntime<Native>>>> {
    async {
        let launcher = run_test(concat!(module_path!(), "::act_as_launcher"))?;
        Ok(Native::runtime(host_resources, launcher).await?)
    }
    .boxed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_that_was_killed_is_replaced_and_sandboxes_go_on() {
    let Some(bench) = GroupedBench::new(Version::V1, native).await else { return };
    let runtime = &bench.ours.runtime;
    let launcher = &runtime.starter().launcher;
    let resources =
        Resources { memory_mb: 64, cpus: 1.0, pids: 32, disk_mb: None, disk_total_mb: None };
    let before = bench.plan(resources.clone()).await;
    runtime.create(&before).await.expect("created");
    runtime.start(&before).await.expect("started");

    let first = launcher.pid().await;
    pidfd::kill(pidfd::open(first).expect("it runs")).expect("root may kill it");

    let after = bench.plan(resources).await;
    runtime.create(&after).await.expect("created");
    runtime.start(&after).await.expect("a new launcher starts it");
    assert_ne!(launcher.pid().await, first);
    for plan in [&before, &after] {
        let guest = runtime.connect(&plan.id).await.expect("it runs");
        guest.ping().await.expect("it answers");
        runtime.destroy(&plan.id).await.expect("destroyed");
        bench.discard(plan).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_stands_on_layers() {
    let Some(bench) = GroupedBench::new(Version::V1, native).await else { return };
    keeps_above_layers(&bench, Setuid::Works).await.unwrap_or_else(|broken| panic!("{broken}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_root_a_sandbox_stands_on_layers() {
    let Some(bench) = as_user(native).await else { return };
    keeps_above_layers(&bench, Setuid::GivesNothing)
        .await
        .unwrap_or_else(|broken| panic!("{broken}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_stands_on_as_many_layers_as_there_may_be() {
    let Some(bench) = GroupedBench::new(Version::V1, native).await else { return };
    keeps_above_many_layers(&bench).await.unwrap_or_else(|broken| panic!("{broken}"));
}
