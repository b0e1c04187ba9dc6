//! Names that refer to a sandbox: slots, ensure, idempotency keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::world::{World, create, list, me, reaches};
use crate::error::Error;
use crate::{Broker, View};
use sandkeep_core::{IdempotencyKey, Principal, SpecDraft, State, limits};
use sandkeep_store::{MemoryStore, Prefix, StateStore};

fn in_slot(slot: &str) -> SpecDraft {
    SpecDraft { slot: Some(slot.parse().expect("a slot")), ..SpecDraft::default() }
}

fn key(text: &str) -> IdempotencyKey {
    text.parse().expect("a key")
}

fn user(name: &str) -> Principal {
    Principal { user: name.to_owned(), ..me() }
}

async fn holder(broker: &Broker, slot: &str) -> Option<View> {
    list(broker)
        .await
        .into_iter()
        .find(|view| view.slot.as_ref().is_some_and(|held| held.as_str() == slot))
}

#[tokio::test]
async fn a_taken_slot_is_refused_by_the_name_of_its_holder() {
    let world = World::new();
    let broker = world.open().await;
    let first = broker.create(&me(), in_slot("shared")).await.expect("a sandbox");
    assert_eq!(first.slot.as_ref().map(|slot| slot.as_str()), Some("shared"));
    let refused = broker.create(&me(), in_slot("shared")).await.expect_err("taken");
    assert!(
        matches!(&refused, Error::SlotTaken { holder, .. } if *holder == first.id),
        "{refused}"
    );
    broker.create(&me(), in_slot("other")).await.expect("another slot");
    broker.create(&user("bob"), in_slot("shared")).await.expect("another user's");
    let elsewhere = SpecDraft { project: Some("web".to_owned()), ..in_slot("shared") };
    broker.create(&me(), elsewhere).await.expect("another project's");
    broker.destroy(&me(), &first.id).await.expect("goes");
    broker.create(&me(), in_slot("shared")).await.expect("it is free again");
}

#[tokio::test]
async fn a_failed_create_gives_its_slot_back() {
    let world = World::new();
    let broker = world.open().await;
    world.storage.failing_creates.store(1, Ordering::SeqCst);
    broker.create(&me(), in_slot("shared")).await.expect_err("no volume");
    assert_eq!(world.remains().await, [""; 0]);
    broker.create(&me(), in_slot("shared")).await.expect("it is free");
}

#[tokio::test]
async fn a_slot_outlives_the_registry() {
    let mut world = World::new();
    let broker = world.open().await;
    let first = broker.create(&me(), in_slot("shared")).await.expect("a sandbox");
    world.crash(broker).await;
    world.store = Arc::new(MemoryStore::new());
    let broker = world.open().await;
    let refused = broker.create(&me(), in_slot("shared")).await.expect_err("it was adopted");
    assert!(
        matches!(&refused, Error::SlotTaken { holder, .. } if *holder == first.id),
        "{refused}"
    );
}

#[tokio::test]
async fn of_a_hundred_ensures_one_creates_and_all_get_the_same() {
    let world = World::new();
    let broker = world.open().await;
    let who = me();
    let callers = (0..100).map(|_| broker.ensure(&who, in_slot("shared")).boxed());
    let answers = join_all(callers).await;
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.expect("one")).collect();
    assert_eq!(answers.iter().filter(|answer| answer.created).count(), 1);
    assert!(answers.iter().all(|answer| answer.sandbox.id == answers[0].sandbox.id));
    assert_eq!(list(&broker).await.len(), 1);
    let bobs = broker.ensure(&user("bob"), in_slot("shared")).await.expect("his own");
    assert!(bobs.created && bobs.sandbox.id != answers[0].sandbox.id);
}

#[tokio::test]
async fn ensure_starts_a_stopped_one_and_replaces_a_dead_one() {
    let world = World::new();
    let broker = world.open().await;
    let first = broker.ensure(&me(), in_slot("shared")).await.expect("made").sandbox;
    broker.stop(&me(), &first.id).await.expect("stops");
    let started = broker.ensure(&me(), in_slot("shared")).await.expect("started");
    assert_eq!((&started.sandbox.id, started.created), (&first.id, false));
    assert_eq!(started.sandbox.state, State::Running);
    world.runtime.kill(&first.id);
    reaches(&broker, &first.id, State::Failed).await;
    let replaced = broker.ensure(&me(), in_slot("shared")).await.expect("replaced");
    assert!(replaced.created && replaced.sandbox.id != first.id);
    assert_eq!(list(&broker).await.len(), 1, "the dead one is gone");
    assert_eq!(holder(&broker, "shared").await.expect("one").id, replaced.sandbox.id);
}

#[tokio::test]
async fn ensure_waits_for_a_create_that_is_under_way() {
    let world = World::new();
    let broker = world.open().await;
    let who = me();
    let create = broker.create(&who, in_slot("shared"));
    let ensure = broker.ensure(&who, in_slot("shared"));
    let (created, ensured) = tokio::join!(create, ensure);
    let ensured = ensured.expect("one of the two");
    match created {
        Ok(view) => assert_eq!((view.id, false), (ensured.sandbox.id, ensured.created)),
        Err(Error::SlotTaken { holder, .. }) => assert_eq!(holder, ensured.sandbox.id),
        Err(error) => panic!("{error}"),
    }
    assert_eq!(list(&broker).await.len(), 1);
}

#[tokio::test]
async fn ensure_needs_a_slot_and_a_draft_that_could_be_made() {
    let world = World::new();
    let broker = world.open().await;
    let error = broker.ensure(&me(), SpecDraft::default()).await.expect_err("no slot");
    assert!(matches!(error, Error::InvalidField { field: "slot", .. }), "{error}");
    broker.ensure(&me(), in_slot("shared")).await.expect("made");
    let wrong = SpecDraft { runtime: Some("warp".to_owned()), ..in_slot("shared") };
    let error = broker.ensure(&me(), wrong).await.expect_err("no such runtime");
    assert!(matches!(error, Error::UnknownRuntime { .. }), "{error}");
}

#[tokio::test]
async fn a_repeated_create_answers_with_the_first_sandbox() {
    let world = World::new();
    let broker = world.open().await;
    let who = me();
    let callers = (0..20).map(|_| broker.create_once(&who, SpecDraft::default(), key("k")).boxed());
    let views: Vec<View> =
        join_all(callers).await.into_iter().map(|view| view.expect("one")).collect();
    assert!(views.iter().all(|view| view.id == views[0].id));
    let broker = world.reopen(broker).await;
    let again = broker.create_once(&me(), SpecDraft::default(), key("k")).await.expect("still");
    assert_eq!(again.id, views[0].id, "it is remembered by the next daemon");
    let other = broker.create_once(&user("bob"), SpecDraft::default(), key("k")).await;
    assert_ne!(other.expect("his own").id, again.id);
    let labels = Some([("a".to_owned(), "b".to_owned())].into());
    let another = SpecDraft { labels, ..SpecDraft::default() };
    let error = broker.create_once(&me(), another, key("k")).await.expect_err("another body");
    assert!(matches!(error, Error::IdempotencyMismatch { .. }), "{error}");
}

#[tokio::test]
async fn a_caller_who_left_and_asks_again_finds_its_first_create() {
    let world = World::new();
    let broker = world.open().await;
    let who = me();
    let first = broker.create_once(&who, SpecDraft::default(), key("k"));
    assert!(first.now_or_never().is_none(), "it is under way");
    let second = broker.create_once(&who, SpecDraft::default(), key("k")).await.expect("made");
    assert_eq!(list(&broker).await, [second]);
}

#[tokio::test]
async fn an_error_is_not_kept_under_its_key() {
    let world = World::new();
    let broker = world.open().await;
    world.storage.failing_creates.store(1, Ordering::SeqCst);
    broker.create_once(&me(), SpecDraft::default(), key("k")).await.expect_err("no volume");
    broker.create_once(&me(), SpecDraft::default(), key("k")).await.expect("a second try");
}

#[tokio::test]
async fn a_destroyed_sandbox_is_not_made_again_by_its_key() {
    let world = World::new();
    let broker = world.open().await;
    let view = broker.create_once(&me(), SpecDraft::default(), key("k")).await.expect("made");
    broker.destroy(&me(), &view.id).await.expect("goes");
    let error = broker.create_once(&me(), SpecDraft::default(), key("k")).await.expect_err("gone");
    assert!(matches!(&error, Error::IdempotencyGone { id, .. } if *id == view.id), "{error}");
    world.clock.advance(limits::IDEMPOTENCY_KEPT + Duration::from_secs(1));
    broker.create_once(&me(), SpecDraft::default(), key("k")).await.expect("the key is forgotten");
}

#[tokio::test]
async fn old_keys_are_swept() {
    let world = World::new();
    let broker = world.open().await;
    broker.create_once(&me(), SpecDraft::default(), key("old")).await.expect("made");
    world.clock.advance(Duration::from_secs(3600));
    broker.create_once(&me(), SpecDraft::default(), key("new")).await.expect("made");
    world.clock.advance(limits::IDEMPOTENCY_KEPT - Duration::from_secs(60));
    broker.shared.directory.sweep_requests(broker.shared.clock.wall()).await.expect("swept");
    let left = world.store.list(&Prefix::new(["idempotency"])).await.expect("a list").entries;
    let names: Vec<_> = left.iter().filter_map(|entry| entry.key.segments().pop()).collect();
    assert_eq!(names, ["new"]);
}

#[tokio::test]
async fn without_slot_and_key_a_create_writes_its_row_and_nothing_else() {
    let world = World::new();
    let broker = world.open().await;
    let before = world.store.list(&Prefix::all()).await.expect("a list").revision;
    create(&broker).await;
    let after = world.store.list(&Prefix::all()).await.expect("a list").revision;
    assert_eq!(after.0 - before.0, 2, "the intent and the outcome");
}
