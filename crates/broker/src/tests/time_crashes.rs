//! A crash at every failpoint of snapshot, prune, rollback and fork, then a new broker: a recorded snapshot has lost
//! nothing, started operations are finished or undone, and nothing is left over.

use super::events::events_are_true;
use super::time::{forks, name, names, snapshot, stopped};
use super::world::{World, list, me};
use crate::{Broker, OnExecs};
use sandkeep_core::{
    SandboxId, State,
    failpoint::{self, simulated},
};
use sandkeep_storage::Storage;

fn points(verb: &str) -> impl Iterator<Item = &'static str> {
    let prefix = format!("{verb}.");
    failpoint::ALL.iter().copied().filter(move |name| name.starts_with(&prefix))
}

/// The storage has exactly the recorded snapshots, and all of them are removed with their sandbox.
async fn ends_well(world: &World, broker: Broker, point: &str) {
    events_are_true(&broker, point).await;
    let mut recorded = 0;
    for view in list(&broker).await {
        recorded += names(&broker, &view.id).len();
        assert_eq!(view.operation, None, "{point}");
    }
    let stored = world.storage.snapshots().await.expect("a list").len();
    assert_eq!(stored, recorded, "{point}");
    for view in list(&broker).await {
        broker.destroy(&me(), &view.id).await.unwrap_or_else(|error| panic!("{point}: {error}"));
    }
    assert_eq!(world.remains().await, [""; 0], "{point}");
}

/// A stopped sandbox with a snapshot of content 1, and content 2 now.
async fn with_snapshot(world: &World, broker: &Broker) -> SandboxId {
    let id = stopped(broker).await;
    world.storage.write(&id, 1);
    snapshot(broker, &id, "first").await;
    world.storage.write(&id, 2);
    id
}

async fn holds(world: &World, broker: &Broker, id: &SandboxId, snapshot: &str) -> u64 {
    broker.rollback(&me(), id, &name(snapshot), OnExecs::Refuse).await.expect(snapshot);
    world.storage.read(id)
}

#[tokio::test]
async fn a_snapshot_is_whole_or_gone() {
    for point in points("snapshot") {
        let world = World::new();
        let broker = world.open().await;
        let id = with_snapshot(&world, &broker).await;
        simulated::arm(point);
        broker.seal_turn(&me(), &id, None).await.expect_err(point);
        assert!(simulated::has_fired(), "{point} is not on the way");
        let broker = world.reopen(broker).await;
        let recorded = ["snapshot.after_record", "snapshot.after_event", "snapshot.after_outcome"]
            .contains(&point);
        let expected: &[&str] = if recorded { &["first", "turn-0001"] } else { &["first"] };
        assert_eq!(names(&broker, &id), expected, "{point}");
        let next = broker.seal_turn(&me(), &id, None).await.expect(point);
        assert_eq!(next.turn, Some(if recorded { 2 } else { 1 }), "{point}");
        assert_eq!(holds(&world, &broker, &id, next.name.as_str()).await, 2, "{point}");
        assert_eq!(holds(&world, &broker, &id, "first").await, 1, "{point}");
        ends_well(&world, broker, point).await;
    }
}

#[tokio::test]
async fn a_pruned_snapshot_is_gone_and_no_other() {
    for point in points("prune") {
        let mut world = World::new();
        world.policy.max_snapshots = 2;
        let broker = world.open().await;
        let id = with_snapshot(&world, &broker).await;
        broker.seal_turn(&me(), &id, None).await.expect("a turn");
        simulated::arm(point);
        broker.seal_turn(&me(), &id, None).await.expect_err(point);
        assert!(simulated::has_fired(), "{point} is not on the way");
        let broker = world.reopen(broker).await;
        assert_eq!(names(&broker, &id), ["first", "turn-0002"], "{point}");
        assert_eq!(holds(&world, &broker, &id, "turn-0002").await, 2, "{point}");
        assert_eq!(holds(&world, &broker, &id, "first").await, 1, "{point}");
        ends_well(&world, broker, point).await;
    }
}

#[tokio::test]
async fn a_rollback_is_finished() {
    for point in points("rollback").chain(["start.after_runtime_create", "start.after_launch"]) {
        let world = World::new();
        let broker = world.open().await;
        let id = with_snapshot(&world, &broker).await;
        broker.start(&me(), &id).await.expect("it starts");
        simulated::arm(point);
        broker.rollback(&me(), &id, &name("first"), OnExecs::Refuse).await.expect_err(point);
        assert!(simulated::has_fired(), "{point} is not on the way");
        let broker = world.reopen(broker).await;
        let view = broker.get(&me(), &id).await.expect(point);
        assert_eq!((view.state, view.operation), (State::Running, None), "{point}");
        assert_eq!(world.storage.read(&id), 1, "{point}");
        assert_eq!(names(&broker, &id), ["first"], "{point}");
        ends_well(&world, broker, point).await;
    }
}

/// Their caller got no answer, so they are removed; or a repeated request gets them.
#[tokio::test]
async fn forks_are_all_there_or_none() {
    let within = ["create.after_intent", "create.after_launch", "create.after_outcome"];
    for point in points("fork").chain(within) {
        let world = World::new();
        let broker = world.open().await;
        let id = with_snapshot(&world, &broker).await;
        let key = || Some("again".parse().expect("a key"));
        simulated::arm(point);
        broker.fork(&me(), &id, forks(None, 2), key()).await.expect_err(point);
        assert!(simulated::has_fired(), "{point} is not on the way");
        let broker = world.reopen(broker).await;
        let made = list(&broker).await.len() - 1;
        let is_made = ["fork.after_outcome", "fork.after_transient"].contains(&point);
        assert_eq!(made, if is_made { 2 } else { 0 }, "{point}");
        let again = broker.fork(&me(), &id, forks(None, 2), key()).await.expect(point);
        assert_eq!((again.len(), list(&broker).await.len()), (2, 3), "{point}");
        for fork in &again {
            assert_eq!(world.storage.read(&fork.id), 2, "{point}");
        }
        ends_well(&world, broker, point).await;
    }
}
