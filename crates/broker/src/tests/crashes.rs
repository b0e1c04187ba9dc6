//! A crash at every failpoint of every verb, then a new broker: nothing acknowledged is lost, and nothing
//! unacknowledged is left behind.

use std::sync::atomic::Ordering;

use super::events::events_are_true;
use super::world::{LONG, World, create, is_not_found, list, me};
use crate::error::Error;
use crate::{Broker, ExecDraft};
use sandkeep_core::{
    IdempotencyKey, SandboxId, SpecDraft, State, TermsPatch,
    failpoint::{self, simulated},
};
use sandkeep_runtime::Runtime;

fn points(verb: &str) -> impl Iterator<Item = &'static str> {
    let prefix = format!("{verb}.");
    failpoint::ALL.iter().copied().filter(move |name| name.starts_with(&prefix))
}

/// After any crash, destroy succeeds and leaves nothing.
async fn ends_well(world: &World, broker: Broker, point: &str) {
    events_are_true(&broker, point).await;
    for view in list(&broker).await {
        broker.destroy(&me(), &view.id).await.unwrap_or_else(|error| panic!("{point}: {error}"));
    }
    assert_eq!(world.remains().await, [""; 0], "{point}");
    events_are_true(&broker, point).await;
    world.crash(broker).await;
    drop(world.open().await);
    assert_eq!(world.remains().await, [""; 0], "{point}");
}

/// A sandbox with every kind of name that can refer to it.
fn named() -> (SpecDraft, IdempotencyKey) {
    let slot = Some("shared".parse().expect("a slot"));
    let name = Some("web".parse().expect("a name"));
    (SpecDraft { slot, name, ..SpecDraft::default() }, "first".parse().expect("a key"))
}

#[tokio::test]
async fn create_is_undone_until_it_is_made() {
    for point in points("create") {
        let world = World::new();
        let broker = world.open().await;
        let (draft, key) = named();
        simulated::arm(point);
        broker.create_once(&me(), draft.clone(), key.clone()).await.expect_err(point);
        assert!(simulated::has_fired(), "{point} is not on the way");
        let broker = world.reopen(broker).await;
        let left = list(&broker).await;
        let made = [
            "create.after_meta_ready",
            "create.after_outcome",
            "create.after_key_outcome",
            "create.before_answer",
        ];
        match (made.contains(&point), &left[..]) {
            (false, []) => assert_eq!(world.sandbox_remains().await, [""; 0], "{point}"),
            (true, [view]) => assert_eq!(view.state, State::Running, "{point}"),
            (_, left) => panic!("{point}: {left:?}"),
        }
        // A repeated request gets the existing sandbox, or a new one; in any case there is exactly one.
        let again = broker.create_once(&me(), draft, key).await.expect(point);
        assert!(left.is_empty() || left[0].id == again.id, "{point}: {left:?} and {again:?}");
        assert_eq!(list(&broker).await.len(), 1, "{point}");
        ends_well(&world, broker, point).await;
    }
}

/// A name or a slot is never lost and never stuck, wherever its holder was when the daemon died.
#[tokio::test]
async fn after_a_crash_a_name_and_a_slot_are_free_or_their_holders() {
    for point in points("create").chain(points("destroy")) {
        let world = World::new();
        let broker = world.open().await;
        let draft = named().0;
        if point.starts_with("destroy") {
            let id = broker.create(&me(), draft.clone()).await.expect("a sandbox").id;
            simulated::arm(point);
            broker.destroy(&me(), &id).await.expect_err(point);
        } else {
            simulated::arm(point);
            let _ = broker.create(&me(), draft.clone()).await;
        }
        simulated::disarm();
        let broker = world.reopen(broker).await;
        let left = list(&broker).await;
        match (&left[..], broker.create(&me(), draft).await) {
            ([], Ok(_)) => {}
            ([view], Err(Error::NameTaken { holder, .. })) => assert_eq!(holder, view.id),
            (left, result) => panic!("{point}: {left:?} {result:?}"),
        }
        ends_well(&world, broker, point).await;
    }
}

#[tokio::test]
async fn new_terms_are_the_old_or_the_new_ones_after_a_crash() {
    for point in points("amend") {
        let world = World::new();
        let broker = world.open().await;
        let id = create(&broker).await.id;
        simulated::arm(point);
        let labels = Some(Some([("a".to_owned(), Some("1".to_owned()))].into()));
        let patch = TermsPatch { labels, ..TermsPatch::default() };
        broker.amend(&me(), &id, patch).await.expect_err(point);
        let broker = world.reopen(broker).await;
        let view = broker.get(&me(), &id).await.expect(point);
        // The row comes first, and is authoritative.
        assert_eq!(view.labels.get("a").map(String::as_str), Some("1"), "{point}");
        let meta = std::fs::read_to_string(world.home(&id).join("meta.json")).expect("a file");
        assert!(meta.contains(r#""labels":{"a":"1"}"#), "{point}: {meta}");
        ends_well(&world, broker, point).await;
    }
}

/// Its caller got an error, so it must not come back, however far it had got.
#[tokio::test]
async fn the_removal_of_a_failed_create_is_finished() {
    let removal = ["destroy.after_runtime", "destroy.after_volume", "destroy.after_home"];
    for point in removal {
        let world = World::new();
        let broker = world.open().await;
        world.storage.failing_creates.store(1, Ordering::SeqCst);
        simulated::arm(point);
        broker.create(&me(), SpecDraft::default()).await.expect_err(point);
        assert!(simulated::has_fired(), "{point} is not on the way");
        let status = world.statuses().await;
        assert!(status.iter().all(|status| status.state() == State::Destroying), "{status:?}");
        let broker = world.reopen(broker).await;
        assert_eq!(world.remains().await, [""; 0], "{point}");
        ends_well(&world, broker, point).await;
    }
}

#[tokio::test]
async fn stop_is_finished() {
    for point in points("stop") {
        let world = World::new();
        let broker = world.open().await;
        let id = create(&broker).await.id;
        simulated::arm(point);
        broker.stop(&me(), &id).await.expect_err(point);
        let broker = world.reopen(broker).await;
        let view = broker.get(&me(), &id).await.expect(point);
        assert_eq!((view.state, view.operation), (State::Stopped, None), "{point}");
        assert_eq!(broker.start(&me(), &id).await.expect(point).state, State::Running);
        ends_well(&world, broker, point).await;
    }
}

#[tokio::test]
async fn start_is_finished_or_undone_by_what_runs() {
    for point in points("start") {
        let world = World::new();
        let broker = world.open().await;
        let id = create(&broker).await.id;
        broker.stop(&me(), &id).await.expect("stops");
        simulated::arm(point);
        broker.start(&me(), &id).await.expect_err(point);
        let broker = world.reopen(broker).await;
        let view = broker.get(&me(), &id).await.expect(point);
        let runs = ["start.after_launch", "start.after_outcome"].contains(&point);
        let expected = if runs { State::Running } else { State::Stopped };
        assert_eq!((view.state, view.operation), (expected, None), "{point}");
        assert_eq!(view.reason.is_some(), !runs, "{point}: it says that it was undone");
        assert_eq!(broker.start(&me(), &id).await.expect(point).state, State::Running);
        ends_well(&world, broker, point).await;
    }
}

#[tokio::test]
async fn destroy_is_finished() {
    for point in points("destroy") {
        let world = World::new();
        let broker = world.open().await;
        let named = broker.create(&me(), named().0).await.expect("a sandbox");
        let (id, other) = (named.id, create(&broker).await.id);
        simulated::arm(point);
        broker.destroy(&me(), &id).await.expect_err(point);
        let broker = world.reopen(broker).await;
        assert!(is_not_found(&broker.get(&me(), &id).await), "{point}");
        let kept = broker.get(&me(), &other).await.expect("the other one is not touched");
        assert_eq!(kept.state, State::Running, "{point}");
        ends_well(&world, broker, point).await;
    }
}

/// A crash during recovery is a crash like any other.
#[tokio::test]
async fn recovery_itself_may_crash() {
    for point in points("destroy") {
        let world = World::new();
        let broker = world.open().await;
        simulated::arm("create.after_launch");
        broker.create(&me(), SpecDraft::default()).await.expect_err(point);
        world.crash(broker).await;
        simulated::arm(point);
        let parts = world.parts();
        let crashed = tokio::spawn(async move { Broker::open(parts).await.map(drop) }).await;
        // Not every point of a destroy is on the path of a recovery.
        assert_eq!(crashed.is_err(), simulated::has_fired(), "{point}");
        simulated::disarm();
        world.released().await;
        let broker = world.open().await;
        assert_eq!(list(&broker).await, [], "{point}");
        ends_well(&world, broker, point).await;
    }
}

#[tokio::test]
async fn execs_of_a_crashed_daemon_go_on_and_end() {
    for point in points("exec") {
        let world = World::new();
        let broker = world.open().await;
        let id = create(&broker).await.id;
        simulated::arm(point);
        let (caller, sandbox) = (broker.clone(), id.clone());
        let crashed = tokio::spawn(async move {
            let argv = vec!["echo".to_owned(), "hello".to_owned()];
            let draft = ExecDraft { argv, ..ExecDraft::default() };
            let mut running = caller.exec(&me(), &sandbox, draft).await.expect("it starts");
            while running.next().await.is_some() {}
        });
        crashed.await.expect_err(point);
        let broker = world.reopen(broker).await;
        assert_eq!(broker.get(&me(), &id).await.expect(point).state, State::Running);
        no_exec_is_left(&world, &id, point).await;
        ends_well(&world, broker, point).await;
    }
}

async fn no_exec_is_left(world: &World, id: &SandboxId, point: &str) {
    let guest = world.runtime.connect(id).await.expect("it runs");
    let drained = async {
        while !guest.execs().await.expect("a list").is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, drained).await.unwrap_or_else(|_| panic!("{point}: never drained"));
}
