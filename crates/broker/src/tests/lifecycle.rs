use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use super::world::{LONG, World, create, is_not_found, list, me, reaches};
use crate::error::Error;
use crate::{Filter, lifecycle::reconcile};
use sandkeep_core::{
    Operation, Port, Principal, Privilege, ResourcesDraft, SandboxId, Scope, Scopes, SpecDraft,
    State, Trigger, Verb, apply, limits,
};
use sandkeep_home::{DataDir, DataDirError};
use sandkeep_runtime::Lifetime;

#[tokio::test]
async fn a_sandbox_is_created_stopped_started_and_destroyed() {
    let world = World::new();
    let broker = world.open().await;
    let view = create(&broker).await;
    assert_eq!((view.state, view.operation, view.reason.as_deref()), (State::Running, None, None));
    assert_eq!((view.runtime.as_str(), view.template.as_str()), ("mock", "empty"));
    assert_eq!(view.privilege, Privilege::Root, "the template's default");
    assert_eq!(broker.get(&me(), &view.id).await.expect("it is there"), view);
    assert_eq!(broker.stop(&me(), &view.id).await.expect("stops").state, State::Stopped);
    assert_eq!(broker.stop(&me(), &view.id).await.expect("twice").state, State::Stopped);
    assert_eq!(broker.start(&me(), &view.id).await.expect("starts").state, State::Running);
    assert_eq!(broker.start(&me(), &view.id).await.expect("twice").state, State::Running);
    broker.destroy(&me(), &view.id).await.expect("goes");
    assert!(is_not_found(&broker.get(&me(), &view.id).await));
    assert!(is_not_found(&broker.destroy(&me(), &view.id).await));
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn another_organization_sees_nothing() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let stranger = Principal {
        organization: "other".to_owned(),
        scopes: Scopes::from_iter([Scope::Write]),
        ..Principal::local()
    };
    assert!(is_not_found(&broker.get(&stranger, &id).await));
    assert!(is_not_found(&broker.stop(&stranger, &id).await));
    assert!(is_not_found(&broker.destroy(&stranger, &id).await));
    assert!(broker.exec(&stranger, &id, Default::default()).await.is_err());
    let page = broker.list(&stranger, &Filter::default()).await.expect("a list");
    assert_eq!((page.items, page.next), (vec![], None));
    assert_eq!(list(&broker).await.len(), 1);
}

#[tokio::test]
async fn what_cannot_be_had_here_is_refused_and_named() {
    let world = World::new();
    let broker = world.open().await;
    let refused =
        async |draft: SpecDraft| broker.create(&me(), draft).await.expect_err("it must be refused");
    let draft = SpecDraft { runtime: Some("docker".to_owned()), ..SpecDraft::default() };
    assert!(
        matches!(refused(draft).await, Error::UnknownRuntime { known, .. } if known == ["mock"])
    );
    let draft = SpecDraft { template: Some("host".to_owned()), ..SpecDraft::default() };
    assert!(
        matches!(refused(draft).await, Error::UnknownTemplate { known, .. } if known == ["empty"])
    );
    let resources = |draft| SpecDraft { resources: Some(draft), ..SpecDraft::default() };
    let disk = resources(ResourcesDraft { disk_mb: Some(10), ..ResourcesDraft::default() });
    assert!(matches!(refused(disk).await, Error::StorageLacks { storage: "set", .. }));
    let memory = resources(ResourcesDraft { memory_mb: Some(64), ..ResourcesDraft::default() });
    let error = refused(memory).await;
    assert!(matches!(error, Error::InvalidField { field: "resources.memory_mb", .. }), "{error}");
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn a_sandbox_whose_row_could_not_grow_is_refused_and_the_largest_can_go() {
    let world = World::new();
    let broker = world.open().await;
    // A control character takes six bytes in JSON.
    let env = |bytes: usize| SpecDraft {
        env: Some((0..4).map(|n| (format!("V{n}"), "\u{1}".repeat(bytes / 24))).collect()),
        ..SpecDraft::default()
    };
    let room = limits::STORE_VALUE_MAX_BYTES - limits::ROW_RESERVE_BYTES;
    let error = broker.create(&me(), env(room)).await.expect_err("too large");
    assert!(matches!(error, Error::InvalidField { field: "env", .. }), "{error}");
    assert_eq!(world.remains().await, [""; 0]);
    let id = broker.create(&me(), env(room - 1024)).await.expect("it just fits").id;
    let handle = broker.shared.find(&me(), &id).expect("it is there");
    let long = "\u{1}".repeat(limits::STORE_VALUE_MAX_BYTES);
    let failed = Trigger::Failed(Operation::Destroy, long);
    let destroying = apply(&handle.published.borrow().status, Trigger::Begin(Verb::Destroy));
    let (status, _) = apply(&destroying.expect("legal").0, failed).expect("legal");
    let reason = serde_json::to_vec(&status).expect("JSON").len();
    assert!(reason < limits::ROW_RESERVE_BYTES, "{reason} bytes are not in the reserve");
    broker.destroy(&me(), &id).await.expect("goes");
}

#[tokio::test]
async fn a_create_that_fails_leaves_nothing_and_says_why() {
    let world = World::new();
    let broker = world.open().await;
    world.storage.failing_creates.store(1, Ordering::SeqCst);
    let error = broker.create(&me(), SpecDraft::default()).await.expect_err("no volume");
    assert!(matches!(error, Error::Storage(_)), "{error}");
    assert_eq!(list(&broker).await, []);
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn a_create_goes_on_when_its_caller_leaves() {
    let world = World::new();
    let broker = world.open().await;
    // Polled once: the verb is in progress, and nobody waits for it any more.
    let who = me();
    let request = broker.create(&who, SpecDraft::default());
    assert!(futures_util::FutureExt::now_or_never(request).is_none());
    let [view] = &list(&broker).await[..] else { panic!("not begun") };
    reaches(&broker, &view.id, State::Running).await;
}

#[tokio::test]
async fn a_destroy_that_fails_is_kept_and_repeated() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    world.storage.failing_destroys.store(2, Ordering::SeqCst);
    broker.destroy(&me(), &id).await.expect_err("the volume would not go");
    let view = broker.get(&me(), &id).await.expect("it is not forgotten");
    assert_eq!(view.state, State::Destroying);
    assert!(view.reason.expect("why").contains("no luck"));
    let denied = broker.start(&me(), &id).await;
    assert!(matches!(denied, Err(Error::WrongState { .. })), "{denied:?}");
    // A restarted daemon tries at once, fails once more, and goes on trying.
    let broker = world.reopen(broker).await;
    assert_eq!(broker.get(&me(), &id).await.expect("still there").state, State::Destroying);
    broker.destroy(&me(), &id).await.expect("goes");
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn a_destroy_that_was_refused_leaves_the_sandbox_to_the_next_daemon() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    world.failing_writes.store(1, Ordering::SeqCst);
    let refused = broker.destroy(&me(), &id).await;
    assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}");
    assert_eq!(broker.get(&me(), &id).await.expect("it is there").state, State::Running);
    let broker = world.reopen(broker).await;
    assert_eq!(broker.get(&me(), &id).await.expect("it is kept").state, State::Running);
    broker.destroy(&me(), &id).await.expect("goes");
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn a_death_from_outside_is_recorded_with_its_reason_and_start_leads_out() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    world.runtime.kill(&id);
    let view = reaches(&broker, &id, State::Failed).await;
    assert_eq!(view.reason.as_deref(), Some("died: guest killed by signal 9"));
    let denied = broker.stop(&me(), &id).await;
    assert!(matches!(denied, Err(Error::WrongState { .. })), "{denied:?}");
    let view = broker.start(&me(), &id).await.expect("start leads out");
    assert_eq!((view.state, view.reason), (State::Running, None));
    // The second life is watched like the first.
    world.runtime.kill(&id);
    reaches(&broker, &id, State::Failed).await;
}

#[tokio::test]
async fn verbs_on_one_sandbox_are_carried_out_one_after_the_other() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let verbs = (0..10).map(|turn| {
        let (broker, id) = (broker.clone(), id.clone());
        async move {
            match turn % 2 {
                0 => broker.stop(&me(), &id).await.map(|view| view.state),
                _ => broker.start(&me(), &id).await.map(|view| view.state),
            }
        }
    });
    for result in join_all(verbs).await {
        let state = result.expect("none is refused: each waits for its turn");
        assert!(matches!(state, State::Running | State::Stopped), "{state}");
    }
    let who = me();
    let ends = join_all((0..5).map(|_| broker.destroy(&who, &id))).await;
    assert!(ends.iter().all(Result::is_ok), "all wanted it gone and it is: {ends:?}");
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn more_verbs_than_may_wait_are_refused() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let who = me();
    let many = join_all((0..100).map(|_| broker.stop(&who, &id))).await;
    let refused = many.iter().filter(|r| matches!(r, Err(Error::LimitReached { .. }))).count();
    assert!(refused > 0, "a queue without end");
    assert!(many.iter().any(Result::is_ok));
}

#[tokio::test]
async fn a_data_directory_has_one_broker() {
    let world = World::new();
    let broker = world.open().await;
    let second = DataDir::open(&world.data());
    assert!(matches!(second, Err(DataDirError::InUse { .. })), "{second:?}");
    world.crash(broker).await;
    DataDir::open(&world.data()).expect("it is free again");
}

#[tokio::test]
async fn shutdown_leaves_sandboxes_running_and_refuses_what_comes_after() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    tokio::time::timeout(LONG, broker.shutdown()).await.expect("it ends");
    let late = broker.create(&me(), SpecDraft::default()).await;
    assert!(matches!(late, Err(Error::ShuttingDown)), "{late:?}");
    let late = broker.stop(&me(), &id).await;
    assert!(matches!(late, Err(Error::ShuttingDown)), "{late:?}");
    drop(broker);
    let broker = world.open().await;
    assert_eq!(broker.get(&me(), &id).await.expect("it went on").state, State::Running);
}

#[tokio::test]
async fn sandboxes_of_a_passing_daemon_go_with_it() {
    let mut world = World::new();
    world.lifetime = Lifetime::WithDaemon;
    let broker = world.open().await;
    for _ in 0..3 {
        create(&broker).await;
    }
    broker.shutdown().await;
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn a_supervisor_that_crashed_is_replaced() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    sandkeep_core::failpoint::simulated::arm("stop.after_processes");
    let result = broker.stop(&me(), &id).await;
    assert!(matches!(result, Err(Error::SandboxFailed { .. })), "{result:?}");
    reconcile::once(&broker.shared).await.expect("reconciles");
    assert_eq!(broker.get(&me(), &id).await.expect("it is there").state, State::Stopped);
    broker.destroy(&me(), &id).await.expect("goes");
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_sandboxes_made_and_destroyed_at_once_leave_nothing() {
    let world = World::new();
    let broker = world.open().await;
    let lives = (0..100).map(|_| {
        let broker = broker.clone();
        tokio::spawn(async move {
            let id: SandboxId = create(&broker).await.id;
            broker.destroy(&me(), &id).await.expect("goes");
        })
    });
    for life in join_all(lives).await {
        life.expect("no panic");
    }
    assert_eq!(list(&broker).await, []);
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn a_listener_ends_with_its_run_however_soon_the_next_one_begins() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let port = Port::new(8000).expect("a port");
    let listening = async || broker.listeners(&me(), &id).await.expect("them");
    let mut before = broker.listen(&me(), &id, port).await.expect("it runs");
    for _ in 0..8 {
        broker.stop(&me(), &id).await.expect("stops");
        broker.start(&me(), &id).await.expect("starts");
        let again = broker.listen(&me(), &id, port).await.expect("it runs");
        assert_ne!(again, before, "one of an earlier run");
        let only = listening().await;
        assert_eq!(only.into_values().collect::<Vec<_>>(), [again]);
        before = again;
    }
    broker.stop(&me(), &id).await.expect("stops");
    broker.start(&me(), &id).await.expect("starts");
    let gone = async {
        while !listening().await.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, gone).await.expect("it ends with its run");
    // Nor does the next daemon open it.
    let broker = world.reopen(broker).await;
    assert!(broker.listeners(&me(), &id).await.expect("them").is_empty());
}
