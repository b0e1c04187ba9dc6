//! Sandboxes whose files the runtime keeps, and volumes that a runtime cannot use.

use super::world::{World, create, me, reaches};
use crate::error::Error;
use crate::inside::toolbox::{self, ToolboxRequest};
use crate::{Broker, DiffRequest, ExecDraft, ForkDraft, OnExecs};
use sandkeep_core::{Code, ResourcesDraft, SandboxId, SnapshotName, SpecDraft, State};
use sandkeep_runtime::{Files, Lifetime};
use sandkeep_storage::{PoolHealth, Storage};
use sandkeep_tree::RootKind;

fn remote() -> World {
    let mut world = World::new();
    world.runtime = world.runtime.keeping(Files::Remote);
    world
}

async fn says(broker: &Broker, id: &SandboxId, word: &str) {
    let argv = ["echo", word].map(str::to_owned).to_vec();
    let mut exec =
        broker.exec(&me(), id, ExecDraft { argv, ..ExecDraft::default() }).await.expect("an exec");
    while exec.next().await.is_some() {}
    let view = broker.exec_view(&me(), id, &exec.id).await.expect("a view");
    assert_eq!((view.exit_code, view.stdout_bytes), (Some(0), word.len() as u64 + 1));
}

#[tokio::test]
async fn a_sandbox_lives_without_a_volume_and_leaves_nothing() {
    let world = remote();
    let broker = world.open().await;
    // Where there is no volume, a full pool is no obstacle.
    *world.storage.pool.lock().expect("nobody panics with it") =
        Some(PoolHealth { total_bytes: 100, free_bytes: 0 });
    let id = create(&broker).await.id;
    says(&broker, &id, "first").await;
    broker.stop(&me(), &id).await.expect("stopped");
    broker.start(&me(), &id).await.expect("started");
    says(&broker, &id, "second").await;
    assert!(world.storage.list().await.expect("a list").is_empty());
    let stats = broker.stats(&me(), &id).await.expect("stats");
    assert_eq!(stats.disk, None);
    broker.destroy(&me(), &id).await.expect("destroyed");
    assert_eq!(world.remains().await, [] as [&str; 0]);
}

#[tokio::test]
async fn what_needs_a_volume_is_refused_before_anything_is_done() {
    let world = remote();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let (who, name) = (me(), "one".parse::<SnapshotName>().expect("a name"));
    let fork = ForkDraft { snapshot: None, count: 1, labels: Default::default(), name: None };
    let refused = [
        broker.snapshot(&who, &id, None, None).await.err(),
        broker.seal_turn(&who, &id, None).await.err(),
        broker.rollback(&who, &id, &name, OnExecs::End).await.err(),
        broker.revert(&who, &id, &name, &["/file".to_owned()]).await.err(),
        broker.diff(&who, &id, DiffRequest::default()).await.err(),
        broker.diff_bundle(&who, &id, DiffRequest::default()).await.err(),
        broker.fork(&who, &id, fork, None).await.err(),
    ];
    for error in refused.map(|error| error.expect("there is no volume")) {
        assert!(matches!(error, Error::NoVolume { .. }), "{error}");
        assert_eq!(error.code(), Code::UnsupportedByRuntime);
    }
    let handle = broker.shared.find(&who, &id).expect("it is there");
    let files =
        toolbox::begin(&broker.shared, &handle, ToolboxRequest::short(::toolbox::Operation::Ports));
    let error = files.await.err().expect("the mock has no toolbox");
    assert_eq!(error.code(), Code::UnsupportedByRuntime, "{error}");
    says(&broker, &id, "unharmed").await;
}

#[tokio::test]
async fn a_draft_that_asks_for_a_volume_is_refused() {
    let world = remote();
    let broker = world.open().await;
    let disk = ResourcesDraft { disk_mb: Some(64), ..ResourcesDraft::default() };
    let drafts = [
        ("template", SpecDraft { template: Some("empty".to_owned()), ..SpecDraft::default() }),
        ("resources.disk_mb", SpecDraft { resources: Some(disk), ..SpecDraft::default() }),
        (
            "snapshot_tool_calls",
            SpecDraft { snapshot_tool_calls: Some(true), ..SpecDraft::default() },
        ),
    ];
    for (wrong, draft) in drafts {
        let error = broker.create(&me(), draft).await.expect_err("there is no volume");
        assert!(matches!(error, Error::InvalidField { field, .. } if field == wrong), "{error}");
    }
    assert_eq!(world.remains().await, [] as [&str; 0]);
}

#[tokio::test]
async fn the_next_daemon_looks_for_no_volume() {
    let mut world = remote();
    world.lifetime = Lifetime::Detached;
    let broker = world.open().await;
    let (runs, stands) = (create(&broker).await.id, create(&broker).await.id);
    broker.stop(&me(), &stands).await.expect("stopped");
    let broker = world.reopen(broker).await;
    reaches(&broker, &runs, State::Running).await;
    says(&broker, &runs, "adopted").await;
    broker.start(&me(), &stands).await.expect("started");
    says(&broker, &stands, "started again").await;
    // Also where the registry is lost, and only the homes tell.
    world.crash(broker).await;
    world.store = Default::default();
    let broker = world.open().await;
    reaches(&broker, &runs, State::Running).await;
    let error = broker.snapshot(&me(), &runs, None, None).await.expect_err("still no volume");
    assert!(matches!(error, Error::NoVolume { .. }), "{error}");
    for id in [runs, stands] {
        broker.destroy(&me(), &id).await.expect("destroyed");
    }
    assert_eq!(world.remains().await, [] as [&str; 0]);
}

#[tokio::test]
async fn a_volume_that_the_runtime_cannot_take_is_not_made() {
    let mut world = World::new();
    world.runtime = world.runtime.keeping(Files::OnStorage(&[RootKind::Dir]));
    let broker = world.open().await;
    *world.storage.kind.lock().expect("nobody panics with it") = RootKind::Overlay;
    let error = broker.create(&me(), SpecDraft::default()).await.expect_err("it does not fit");
    let unfit = matches!(
        error,
        Error::UnfitVolume { runtime: "mock", storage: "set", kind: RootKind::Overlay }
    );
    assert!(unfit, "{error}");
    assert_eq!(world.remains().await, [] as [&str; 0]);
}
