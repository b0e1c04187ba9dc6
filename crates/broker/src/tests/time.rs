//! Snapshots, turns, rollbacks, forks and the log. The mock cannot freeze, so sandboxes are stopped for a snapshot.

use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use super::world::{World, create, is_not_found, list, me};
use crate::error::Error;
use crate::{Broker, ExecDraft, ForkDraft, Happening, OnExecs, SnapshotView};
use sandkeep_core::{SandboxId, SnapshotName, SpecDraft, State};
use sandkeep_runtime::RuntimeError;
use sandkeep_storage::Storage;
use sandkeep_store::{Prefix, StateStore};

pub(super) fn name(text: &str) -> SnapshotName {
    text.parse().expect(text)
}

pub(super) fn forks(snapshot: Option<&str>, count: usize) -> ForkDraft {
    ForkDraft { snapshot: snapshot.map(name), count, labels: Default::default(), name: None }
}

pub(super) async fn stopped(broker: &Broker) -> SandboxId {
    let id = create(broker).await.id;
    broker.stop(&me(), &id).await.expect("it stops");
    id
}

pub(super) async fn snapshot(broker: &Broker, id: &SandboxId, text: &str) -> SnapshotView {
    broker.snapshot(&me(), id, Some(name(text)), None).await.expect(text)
}

async fn turn(broker: &Broker, id: &SandboxId) -> String {
    broker.seal_turn(&me(), id, None).await.expect("a turn").name.to_string()
}

pub(super) fn names(broker: &Broker, id: &SandboxId) -> Vec<String> {
    let views = broker.snapshots(&me(), id).expect("a list");
    views.into_iter().map(|view| view.name.to_string()).collect()
}

#[tokio::test]
async fn the_oldest_turns_give_way_and_no_number_comes_twice() {
    let mut world = World::new();
    world.policy.max_snapshots = 3;
    let broker = world.open().await;
    let id = stopped(&broker).await;
    snapshot(&broker, &id, "mine").await;
    for expected in ["turn-0001", "turn-0002", "turn-0003", "turn-0004"] {
        assert_eq!(turn(&broker, &id).await, expected);
    }
    assert_eq!(names(&broker, &id), ["mine", "turn-0003", "turn-0004"]);
    assert_eq!(world.storage.snapshots().await.expect("a list").len(), 3);
    let broker = world.reopen(broker).await;
    assert_eq!(names(&broker, &id), ["mine", "turn-0003", "turn-0004"]);
    for gone in ["turn-0003", "turn-0004"] {
        broker.delete_snapshot(&me(), &id, &name(gone)).await.expect(gone);
    }
    let broker = world.reopen(broker).await;
    assert_eq!(
        turn(&broker, &id).await,
        "turn-0005",
        "also when nothing tells of the earlier ones"
    );
    assert_eq!(broker.get(&me(), &id).await.expect("it is there").turn_count, 5);
    broker.destroy(&me(), &id).await.expect("it goes");
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn what_was_asked_for_never_gives_way() {
    let world = World::new();
    let broker = world.open().await;
    let draft = SpecDraft { max_snapshots: Some(2), ..SpecDraft::default() };
    let id = broker.create(&me(), draft).await.expect("a sandbox").id;
    broker.stop(&me(), &id).await.expect("it stops");
    snapshot(&broker, &id, "one").await;
    turn(&broker, &id).await;
    snapshot(&broker, &id, "two").await;
    assert_eq!(names(&broker, &id), ["one", "two"], "the turn gave way");
    let full = broker.snapshot(&me(), &id, Some(name("three")), None).await;
    assert!(matches!(full, Err(Error::SnapshotsFull { limit: 2, .. })), "{full:?}");
    let full = broker.seal_turn(&me(), &id, None).await;
    assert!(matches!(full, Err(Error::SnapshotsFull { .. })), "{full:?}");
    assert_eq!(names(&broker, &id), ["one", "two"]);
    let more = SpecDraft { max_snapshots: Some(101), ..SpecDraft::default() };
    let refused = broker.create(&me(), more).await.expect_err("more than the daemon allows");
    assert!(matches!(refused, Error::InvalidField { field: "max_snapshots", .. }), "{refused}");
}

#[tokio::test]
async fn turns_at_the_same_time_get_different_numbers() {
    let world = World::new();
    let broker = world.open().await;
    let id = stopped(&broker).await;
    let mut numbers = join_all((0..20).map(|_| turn(&broker, &id))).await;
    numbers.sort();
    let expected: Vec<String> = (1..=20).map(|number| format!("turn-{number:04}")).collect();
    assert_eq!(numbers, expected);
}

#[tokio::test]
async fn a_name_is_one_snapshots_and_not_a_turns() {
    let world = World::new();
    let broker = world.open().await;
    let id = stopped(&broker).await;
    let view = snapshot(&broker, &id, "mine").await;
    let twice = broker.snapshot(&me(), &id, Some(name("mine")), None).await;
    assert!(matches!(twice, Err(Error::SnapshotExists { .. })), "{twice:?}");
    for taken in ["turn-0001", "now", view.id.as_str()] {
        let refused = broker.snapshot(&me(), &id, Some(name(taken)), None).await;
        assert!(matches!(refused, Err(Error::InvalidField { field: "name", .. })), "{refused:?}");
    }
    for means_it in ["mine", view.id.as_str()] {
        let found = broker.snapshot_view(&me(), &id, &name(means_it)).expect(means_it);
        assert_eq!(found, view);
    }
    let unnamed = broker.snapshot(&me(), &id, None, None).await.expect("a snapshot");
    assert_eq!(unnamed.name.as_str(), unnamed.id.as_str());
    let other = stopped(&broker).await;
    snapshot(&broker, &other, "mine").await;
    let elsewhere = broker.snapshot_view(&me(), &other, &name(view.id.as_str()));
    assert!(matches!(elsewhere, Err(Error::SnapshotNotFound { .. })), "{elsewhere:?}");
}

#[tokio::test]
async fn what_runs_and_cannot_stand_still_is_not_snapshotted() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let refused = broker.seal_turn(&me(), &id, None).await.expect_err("the mock cannot");
    let unsupported = matches!(&refused, Error::Runtime(RuntimeError::Unsupported { .. }));
    assert!(unsupported && refused.to_string().contains("stop it first"), "{refused}");
    let view = broker.get(&me(), &id).await.expect("it is there");
    assert_eq!((view.state, view.operation), (State::Running, None));
}

#[tokio::test]
async fn a_snapshot_that_fails_leaves_nothing_and_no_gap() {
    let world = World::new();
    let broker = world.open().await;
    let id = stopped(&broker).await;
    world.storage.failing_snapshots.store(1, Ordering::SeqCst);
    broker.seal_turn(&me(), &id, None).await.expect_err("no luck");
    let view = broker.get(&me(), &id).await.expect("it is there");
    assert_eq!((view.state, view.operation, view.reason), (State::Stopped, None, None));
    assert_eq!(turn(&broker, &id).await, "turn-0001");
}

#[tokio::test]
async fn a_rollback_brings_the_files_back_and_keeps_all_else() {
    let world = World::new();
    let broker = world.open().await;
    let slot = Some("shared".parse().expect("a slot"));
    let draft = SpecDraft { slot, ..SpecDraft::default() };
    let before = broker.create(&me(), draft).await.expect("a sandbox");
    let id = before.id.clone();
    broker.stop(&me(), &id).await.expect("it stops");
    world.storage.write(&id, 1);
    turn(&broker, &id).await;
    world.storage.write(&id, 2);
    turn(&broker, &id).await;
    let fork = broker.fork(&me(), &id, forks(Some("turn-0002"), 1), None).await.expect("a fork");
    let first = name("turn-0001");
    let who = me();
    let back = || broker.rollback(&who, &id, &first, OnExecs::Refuse);
    let view = back().await.expect("a rollback");
    assert_eq!((world.storage.read(&id), view.state), (1, State::Stopped), "it was stopped");
    broker.start(&me(), &id).await.expect("it starts");
    world.storage.write(&id, 3);
    let view = back().await.expect("a rollback");
    assert_eq!((world.storage.read(&id), view.state), (1, State::Running), "it ran");
    assert_eq!((view.owner, view.slot), (before.owner, before.slot));
    assert_eq!(names(&broker, &id), ["turn-0001", "turn-0002"], "later ones stay");
    assert_eq!(world.storage.read(&fork[0].id), 2);
    assert_eq!(turn_after(&broker, &id).await, "turn-0003");
    let nowhere = broker.rollback(&me(), &id, &name("nowhere"), OnExecs::End).await;
    assert!(matches!(nowhere, Err(Error::SnapshotNotFound { .. })), "{nowhere:?}");
}

async fn turn_after(broker: &Broker, id: &SandboxId) -> String {
    broker.stop(&me(), id).await.expect("it stops");
    turn(broker, id).await
}

#[tokio::test]
async fn a_rollback_that_fails_says_so_and_another_leads_out() {
    let world = World::new();
    let broker = world.open().await;
    let id = stopped(&broker).await;
    snapshot(&broker, &id, "good").await;
    broker.start(&me(), &id).await.expect("it starts");
    world.storage.failing_rollbacks.store(1, Ordering::SeqCst);
    broker.rollback(&me(), &id, &name("good"), OnExecs::Refuse).await.expect_err("no luck");
    let view = broker.get(&me(), &id).await.expect("it is there");
    assert_eq!((view.state, view.operation), (State::Failed, None));
    assert!(view.reason.expect("why").starts_with("rollback failed: "));
    let forked = broker.fork(&me(), &id, forks(None, 1), None).await.expect("it can be forked");
    assert_eq!(forked[0].state, State::Running);
    let view = broker.rollback(&me(), &id, &name("good"), OnExecs::Refuse).await.expect("out");
    assert_eq!((view.state, view.reason), (State::Running, None));
}

#[tokio::test]
async fn commands_that_run_hinder_a_rollback_and_are_named() {
    let world = World::new();
    let broker = world.open().await;
    let id = stopped(&broker).await;
    snapshot(&broker, &id, "good").await;
    broker.start(&me(), &id).await.expect("it starts");
    let argv = ["sleep", "1000"].map(str::to_owned).to_vec();
    let draft = ExecDraft { argv, ..ExecDraft::default() };
    let running = broker.exec(&me(), &id, draft).await.expect("it starts");
    let exec = running.id.clone();
    match broker.rollback(&me(), &id, &name("good"), OnExecs::Refuse).await {
        Err(Error::ExecsInFlight { execs, .. }) => assert_eq!(execs, [exec]),
        other => panic!("{other:?}"),
    }
    let view = broker.get(&me(), &id).await.expect("it is there");
    assert_eq!((view.state, view.operation), (State::Running, None));
    let view = broker.rollback(&me(), &id, &name("good"), OnExecs::End).await.expect("by force");
    assert_eq!(view.state, State::Running);
    let draft = ExecDraft { argv: vec!["true".to_owned()], ..ExecDraft::default() };
    broker.exec(&me(), &id, draft).await.expect("commands begin again");
}

#[tokio::test]
async fn forks_have_the_files_and_the_spec_and_no_slot() {
    let world = World::new();
    let broker = world.open().await;
    let slot = Some("shared".parse().expect("a slot"));
    let map = |name: &str| Some([(name.to_owned(), "1".to_owned())].into());
    let draft = SpecDraft {
        slot,
        labels: map("a"),
        env: map("A"),
        timeout_secs: Some(1000),
        ..SpecDraft::default()
    };
    let source = broker.create(&me(), draft).await.expect("a sandbox");
    broker.stop(&me(), &source.id).await.expect("it stops");
    world.storage.write(&source.id, 7);
    let mut wish = forks(None, 3);
    wish.labels.insert("b".to_owned(), Some("2".to_owned()));
    wish.labels.insert("a".to_owned(), None);
    let made = broker.fork(&me(), &source.id, wish, None).await.expect("forks");
    assert_eq!(made.len(), 3);
    for fork in &made {
        assert_eq!((fork.state, &fork.slot, fork.turn_count), (State::Running, &None, 0));
        assert_eq!((fork.timeout_secs, &fork.resources), (Some(1000), &source.resources));
        assert_eq!(fork.labels, [("b".to_owned(), "2".to_owned())].into());
        assert_eq!(world.storage.read(&fork.id), 7);
        assert_ne!(fork.id, source.id);
        assert_eq!(names(&broker, &fork.id), ["base"]);
        let origin = fork.forked_from.as_ref().expect("it is a fork");
        assert_eq!((&origin.sandbox, &origin.snapshot), (&source.id, &None));
    }
    let stored = world.storage.snapshots().await.expect("a list");
    assert!(stored.iter().all(|(of, _)| *of != source.id), "it was for the forks alone");
    assert_eq!(stored.len(), 3, "each fork has its base");
    assert_eq!(names(&broker, &source.id), [""; 0]);
    broker.destroy(&me(), &source.id).await.expect("it goes");
    assert_eq!(list(&broker).await.len(), 3, "forks need their source no more");
    for count in [0, 101] {
        let refused = broker.fork(&me(), &made[0].id, forks(None, count), None).await;
        assert!(matches!(refused, Err(Error::InvalidField { field: "count", .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn forks_come_all_or_not_at_all() {
    let mut world = World::new();
    world.policy.quotas.user.sandboxes = Some(4);
    let broker = world.open().await;
    let id = stopped(&broker).await;
    let refused = broker.fork(&me(), &id, forks(None, 4), None).await;
    assert!(matches!(refused, Err(Error::QuotaExceeded { .. })), "{refused:?}");
    assert_eq!(list(&broker).await.len(), 1, "not even those that there was room for");
    world.storage.failing_creates.store(1, Ordering::SeqCst);
    broker.fork(&me(), &id, forks(None, 3), None).await.expect_err("one of them has no luck");
    assert_eq!(list(&broker).await.len(), 1);
    assert!(world.storage.snapshots().await.expect("a list").is_empty());
    assert_eq!(broker.fork(&me(), &id, forks(None, 3), None).await.expect("now").len(), 3);
}

#[tokio::test]
async fn forks_under_a_key_are_made_once() {
    let world = World::new();
    let broker = world.open().await;
    let id = stopped(&broker).await;
    let key = || Some("again".parse().expect("a key"));
    let ids = |views: Vec<crate::View>| -> Vec<SandboxId> {
        views.into_iter().map(|view| view.id).collect()
    };
    let first = ids(broker.fork(&me(), &id, forks(None, 2), key()).await.expect("forks"));
    let again = ids(broker.fork(&me(), &id, forks(None, 2), key()).await.expect("the same"));
    assert_eq!(first, again);
    let broker = world.reopen(broker).await;
    let again = ids(broker.fork(&me(), &id, forks(None, 2), key()).await.expect("the same"));
    assert_eq!(first, again);
    let other = broker.fork(&me(), &id, forks(None, 3), key()).await;
    assert!(matches!(other, Err(Error::IdempotencyMismatch { .. })), "{other:?}");
    broker.destroy(&me(), &first[1]).await.expect("it goes");
    let gone = broker.fork(&me(), &id, forks(None, 2), key()).await;
    assert!(matches!(gone, Err(Error::IdempotencyGone { .. })), "{gone:?}");
}

#[tokio::test]
async fn a_fork_of_what_is_destroyed_is_not_found_and_leaves_nothing() {
    let world = World::new();
    let broker = world.open().await;
    for _ in 0..10 {
        let id = stopped(&broker).await;
        let who = me();
        let (forked, destroyed) =
            tokio::join!(broker.fork(&who, &id, forks(None, 2), None), broker.destroy(&who, &id));
        destroyed.expect("it goes in any case");
        match forked {
            Ok(made) => assert_eq!(made.len(), 2),
            Err(error) => {
                let settled = matches!(
                    error,
                    Error::NotFound { .. } | Error::WrongState { .. } | Error::Busy { .. }
                );
                assert!(settled, "{error:?}");
            }
        }
        for view in list(&broker).await {
            broker.destroy(&me(), &view.id).await.expect("it goes");
        }
        assert_eq!(world.remains().await, [""; 0]);
    }
}

#[tokio::test]
async fn snapshots_outlive_the_registry() {
    let world = World::new();
    let broker = world.open().await;
    let id = stopped(&broker).await;
    snapshot(&broker, &id, "mine").await;
    turn(&broker, &id).await;
    world.crash(broker).await;
    for entry in world.store.list(&Prefix::new([""; 0])).await.expect("rows").entries {
        world.store.delete(&entry.key, entry.revision).await.expect("lost");
    }
    let broker = world.open().await;
    assert_eq!(names(&broker, &id), ["mine", "turn-0001"]);
    assert_eq!(turn(&broker, &id).await, "turn-0002");
    let broker = world.reopen(broker).await;
    assert_eq!(names(&broker, &id), ["mine", "turn-0001", "turn-0002"]);
}

#[tokio::test]
async fn records_and_the_storage_are_brought_together() {
    let world = World::new();
    let broker = world.open().await;
    let id = stopped(&broker).await;
    let lost = snapshot(&broker, &id, "lost").await;
    snapshot(&broker, &id, "kept").await;
    world.crash(broker).await;
    world.storage.lose(&lost.id);
    let nobodys = sandkeep_core::SnapshotId::random();
    world.storage.snapshot(&id, &nobodys).await.expect("a snapshot");
    let broker = world.open().await;
    assert_eq!(names(&broker, &id), ["kept"]);
    assert_eq!(world.storage.snapshots().await.expect("a list").len(), 1);
    let stranger = SandboxId::random();
    assert!(is_not_found(&broker.snapshots(&me(), &stranger)));
}

#[tokio::test]
async fn the_log_tells_what_happened_in_its_order() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let argv = ["sh", "-c", "exit 3"].map(str::to_owned).to_vec();
    let draft = ExecDraft { argv, ..ExecDraft::default() };
    let mut running = broker.exec(&me(), &id, draft).await.expect("it starts");
    while running.next().await.is_some() {}
    drop(running);
    broker.stop(&me(), &id).await.expect("it stops");
    broker.seal_turn(&me(), &id, Some("all done".to_owned())).await.expect("a turn");
    broker.rollback(&me(), &id, &name("turn-0001"), OnExecs::Refuse).await.expect("a rollback");
    broker.fork(&me(), &id, forks(Some("turn-0001"), 1), None).await.expect("a fork");
    broker.start(&me(), &id).await.expect("it starts");
    let broker = world.reopen(broker).await;
    let log = broker.log(&me(), &id, 100).await.expect("a log");
    let mut seen: Vec<&str> = log.iter().map(|entry| word(&entry.what)).collect();
    // The clock of the test stands still while that of the journal goes on.
    let exec = seen.iter().position(|word| *word == "exec").expect("the exec is there");
    seen.remove(exec);
    assert_eq!(seen, ["created", "stopped", "turn", "rolled_back", "forked", "started"]);
    let turn = log.iter().find(|entry| word(&entry.what) == "turn").expect("a turn");
    assert!(
        matches!(&turn.what, Happening::Turn { note: Some(note), turn: 1, .. } if note == "all done")
    );
    assert_eq!(broker.log(&me(), &id, 2).await.expect("a log").len(), 2);
}

fn word(what: &Happening) -> &'static str {
    match what {
        Happening::Created { .. } => "created",
        Happening::Stopped { .. } => "stopped",
        Happening::Started => "started",
        Happening::Turn { .. } => "turn",
        Happening::RolledBack { .. } => "rolled_back",
        Happening::Forked { .. } => "forked",
        Happening::Exec { exit_code: Some(3), .. } => "exec",
        _ => "other",
    }
}
