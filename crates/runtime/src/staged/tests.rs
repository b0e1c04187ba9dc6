//! Common parts of the tests of staged runtimes, with their own test binary as the stage; and failures of a stage or a
//! tool.

use std::io;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Afterwards, Direction, Scene, Staged, StagedRuntime, Technique};
use crate::conformance::Bench;
use crate::grouped::HostResources;
use crate::grouped::bench::{GroupedBench, Version};
use crate::{Plan, PlannedFiles, Runtime};
use sandkeep_core::Resources;
use sandkeep_sys::stage::{Dev, Identity, Stage, before_main};
use sandkeep_tree::Bind;

pub(crate) fn staged<T: Technique + Default + 'static>(
    host_resources: Arc<HostResources>,
) -> BoxFuture<'static, anyhow::Result<Arc<StagedRuntime<T>>>> {
    async {
        let us = std::env::current_exe()?.into_os_string();
        let stage = Stage::new(vec![us, before_main::ARGUMENT.into()]);
        Ok(Staged::runtime(T::default(), host_resources, stage).await?)
    }
    .boxed()
}

/// bwrap, told what it does not understand.
#[derive(Default)]
struct Misled;

impl Technique for Misled {
    const NAME: &str = "bwrap";
    const PACKAGE: &str = "bubblewrap";
    const OLDEST: (u32, u32) = (0, 5);
    const AFTERWARDS: Afterwards = Afterwards::Stays;

    fn direct(&self, _: &Scene<'_>) -> io::Result<Direction> {
        Ok(Direction {
            arguments: vec!["--no-such-option".to_owned()],
            bundle: None,
            dev: Dev::Tool,
            identity: Identity::Host,
        })
    }
}

/// Starts a sandbox that cannot be, and returns what was said about it. Nothing of it may be left.
async fn failing_start(spoil: fn(&mut Plan)) -> Option<String> {
    let bench = GroupedBench::new(Version::V1, staged::<Misled>).await?;
    let resources =
        Resources { memory_mb: 64, cpus: 1.0, pids: 32, disk_mb: None, disk_total_mb: None };
    let mut plan = bench.plan(resources).await;
    spoil(&mut plan);
    let runtime = &bench.ours.runtime;
    runtime.create(&plan).await.expect("created");
    let error = runtime.start(&plan).await.expect_err("it cannot be started").to_string();
    let all = runtime.list().await.expect("the groups are there");
    assert!(all.iter().all(|found| !found.running), "{all:?}");
    runtime.destroy(&plan.id).await.expect("destroyed");
    assert!(runtime.list().await.expect("listed").is_empty());
    bench.discard(&plan).await;
    Some(error)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_gives_up_is_quoted_and_leaves_nothing() {
    let Some(error) = failing_start(|_| ()).await else { return };
    assert!(error.contains("failed to have bwrap start it"), "{error}");
    assert!(error.contains("no-such-option"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_fails_names_the_step_and_leaves_nothing() {
    let nowhere = |plan: &mut Plan| {
        let bind = Bind { source: "/usr".into(), target: "no/such/directory".into() };
        let PlannedFiles::Stored(files) = &mut plan.files else { panic!("a volume") };
        files.binds = Arc::from([bind]);
    };
    let Some(error) = failing_start(nowhere).await else { return };
    assert!(error.contains("failed to lay out its root: No such file or directory"), "{error}");
}
