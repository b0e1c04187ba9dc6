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
use sandkeep_sys::{
    pidfd,
    stage::{Stage, before_main},
};

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
        let us = std::env::current_exe()?.into_os_string();
        let stage = Stage::new(vec![us, before_main::ARGUMENT.into()]);
        Ok(Native::runtime(host_resources, launcher, &stage).await?)
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

/// The processes in a network namespace, by its name in /proc.
fn processes_in(network: &std::path::Path) -> usize {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let networks = all.filter_map(|process| std::fs::read_link(process.path().join("ns/net")).ok());
    networks.filter(|found| found == network).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_in_the_network_of_a_destroyed_sandbox() {
    let Some(bench) = GroupedBench::new(Version::V1, native).await else { return };
    let runtime = &bench.ours.runtime;
    let mut plan = bench.plan(small()).await;
    plan.network = true;
    if let Err(reason) = runtime.create(&plan).await {
        eprintln!("SKIP nothing_is_left_in_the_network_of_a_destroyed_sandbox: {reason}");
        return;
    }
    runtime.start(&plan).await.expect("started");
    let guest = runtime.guest_pid(&plan.id).expect("its group").expect("it runs");
    let network = std::fs::read_link(format!("/proc/{guest}/ns/net")).expect("its network");
    let ours = std::fs::read_link("/proc/self/ns/net").expect("ours");
    assert_ne!(network, ours);
    let _sockets = runtime.network(&plan.id).await.expect("caught");
    assert_eq!(processes_in(&network), 1);
    let after = std::fs::read_link("/proc/self/ns/net").expect("ours");
    assert_eq!(ours, after, "the daemon stays in its own network");
    runtime.destroy(&plan.id).await.expect("destroyed");
    assert_eq!(processes_in(&network), 0);
    bench.discard(&plan).await;
}

fn small() -> Resources {
    Resources { memory_mb: 64, cpus: 1.0, pids: 32, disk_mb: None, disk_total_mb: None }
}

/// Not a test: prints what a way out adds to the start of a sandbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn what_a_way_out_costs() {
    const ROUNDS: usize = 60;
    let Some(bench) = GroupedBench::new(Version::V1, native).await else { return };
    let runtime = &bench.ours.runtime;
    runtime.check_network().expect("this kernel can");
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS * 2 {
        let mut plan = bench.plan(small()).await;
        plan.network = round % 2 == 1;
        let began = std::time::Instant::now();
        runtime.create(&plan).await.expect("created");
        runtime.start(&plan).await.expect("started");
        if plan.network {
            drop(runtime.network(&plan.id).await.expect("caught"));
        }
        runtime.connect(&plan.id).await.expect("it runs").ping().await.expect("it answers");
        let times = if plan.network { &mut with } else { &mut without };
        times.push(began.elapsed());
        runtime.destroy(&plan.id).await.expect("destroyed");
        bench.discard(&plan).await;
    }
    for (name, times) in [("without", &mut without), ("with", &mut with)] {
        times.sort();
        println!("{name}: p10 {:?} p50 {:?}", times[ROUNDS / 10], times[ROUNDS / 2]);
    }
}
