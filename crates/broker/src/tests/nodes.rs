//! Two brokers, each with its own data directory and runtime, on one store.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;

use super::world::{World, create, list, me};
use crate::error::Error;
use crate::{Broker, Filter, Quota, Quotas, View};
use sandkeep_core::{IdempotencyKey, SandboxId, SpecDraft, State, failpoint};
use sandkeep_store::{Prefix, StateStore};

fn two_worlds() -> (World, World) {
    let (one, mut other) = (World::new(), World::new());
    other.store = Arc::clone(&one.store);
    (one, other)
}

fn in_slot(slot: &str) -> SpecDraft {
    SpecDraft { slot: Some(slot.parse().expect("a slot")), ..SpecDraft::default() }
}

fn key(text: &str) -> IdempotencyKey {
    text.parse().expect("a key")
}

fn ids(views: &[View]) -> BTreeSet<SandboxId> {
    views.iter().map(|view| view.id.clone()).collect()
}

async fn destroy_all(broker: &Broker) {
    for view in list(broker).await {
        broker.destroy(&me(), &view.id).await.expect("goes");
    }
}

async fn nothing_remains(worlds: [&World; 2]) {
    for world in worlds {
        assert_eq!(world.remains().await, [""; 0]);
    }
    let rows = worlds[0].store.list(&Prefix::new(["sandboxes"])).await.expect("rows").entries;
    assert!(rows.is_empty(), "{rows:?}");
}

#[tokio::test]
async fn a_broker_that_begins_anew_touches_nothing_of_the_others() {
    let (one, other) = two_worlds();
    let (a, b) = (one.open().await, other.open().await);
    let here = [create(&a).await, a.create(&me(), in_slot("a")).await.expect("a sandbox")];
    let there = [create(&b).await, b.create(&me(), in_slot("b")).await.expect("a sandbox")];
    b.stop(&me(), &there[0].id).await.expect("stops");
    let before = list(&b).await;
    let rows = |entries: Vec<sandkeep_store::Entry>| -> Vec<_> {
        let of_b = |entry: &sandkeep_store::Entry| {
            there.iter().any(|view| entry.key.segments().contains(&view.id.to_string()))
        };
        entries.into_iter().filter(of_b).collect()
    };
    let all = || async { rows(one.store.list(&Prefix::all()).await.expect("a list").entries) };
    let written = all().await;
    assert_eq!(written.len(), 2, "their rows");
    let a = one.reopen(a).await;
    crate::lifecycle::reconcile::once(&a.shared).await.expect("looked");
    assert_eq!(ids(&list(&a).await), ids(&here), "it has its own, and no other");
    assert_eq!(all().await, written, "the other's rows");
    assert_eq!(list(&b).await, before);
    b.start(&me(), &there[0].id).await.expect("its row is as it left it");
    for (broker, taken) in [(&a, "b"), (&b, "a")] {
        let refused = broker.create(&me(), in_slot(taken)).await.expect_err("taken");
        assert!(matches!(refused, Error::SlotTaken { .. }), "{refused}");
    }
    destroy_all(&a).await;
    assert_eq!(list(&b).await.len(), 2);
    destroy_all(&b).await;
    nothing_remains([&one, &other]).await;
}

#[tokio::test]
async fn what_one_was_making_when_it_died_is_removed_by_itself_alone() {
    for point in
        ["create.after_row", "create.after_key", "create.after_slot", "create.after_launch"]
    {
        let (one, other) = two_worlds();
        let (a, b) = (one.open().await, other.open().await);
        failpoint::simulated::arm(point);
        a.create_once(&me(), in_slot("s"), key("k")).await.expect_err("a crash");
        one.crash(a).await;
        let left = one.rows().await;
        assert_eq!(left.len(), 1, "{point}");
        let b = other.reopen(b).await;
        assert_eq!(one.rows().await, left, "{point}: another broker has removed it");
        let refused = b.create_once(&me(), in_slot("s"), key("k")).await;
        match (point, refused) {
            // The key did not lead anywhere yet.
            ("create.after_row", Ok(_)) => {}
            (_, Err(Error::Elsewhere { id, .. })) if point != "create.after_row" => {
                assert_eq!([id], left[..]);
            }
            (_, other) => panic!("{point}: {other:?}"),
        }
        let a = one.open().await;
        assert_eq!(list(&a).await, [], "{point}");
        let made = b.create_once(&me(), in_slot("s"), key("k")).await.expect("it is free");
        destroy_all(&b).await;
        let gone = a.create_once(&me(), in_slot("s"), key("k")).await.expect_err("it was made");
        assert!(matches!(&gone, Error::IdempotencyGone { id, .. } if *id == made.id), "{gone}");
        nothing_remains([&one, &other]).await;
    }
}

#[tokio::test]
async fn of_two_who_ensure_one_slot_one_makes_it() {
    let (one, other) = two_worlds();
    let (a, b) = (one.open().await, other.open().await);
    for round in 0..20 {
        let who = me();
        let (ours, theirs) =
            tokio::join!(a.ensure(&who, in_slot("s")), b.ensure(&who, in_slot("s")));
        let (made, refused) = match (ours, theirs) {
            (Ok(made), Err(refused)) | (Err(refused), Ok(made)) => (made, refused),
            both => panic!("round {round}: {both:?}"),
        };
        assert!(made.created);
        let holder = match refused {
            Error::SlotTaken { holder, .. } => holder,
            error => panic!("{error}"),
        };
        assert_eq!(holder, made.sandbox.id);
        destroy_all(&a).await;
        destroy_all(&b).await;
    }
    nothing_remains([&one, &other]).await;
}

#[tokio::test]
async fn of_two_creates_under_one_key_one_is_made_and_the_other_is_told_where() {
    let (one, other) = two_worlds();
    let (a, b) = (one.open().await, other.open().await);
    for round in 0..20 {
        let (who, key) = (me(), key(&format!("k{round}")));
        let (ours, theirs) = tokio::join!(
            a.create_once(&who, SpecDraft::default(), key.clone()),
            b.create_once(&who, SpecDraft::default(), key.clone()),
        );
        let (made, refused, loser) = match (ours, theirs) {
            (Ok(made), Err(refused)) => (made, refused, &b),
            (Err(refused), Ok(made)) => (made, refused, &a),
            both => panic!("round {round}: {both:?}"),
        };
        assert!(matches!(refused, Error::Fenced { .. } | Error::Elsewhere { .. }), "{refused}");
        let again = loser.create_once(&who, SpecDraft::default(), key).await.expect_err("not here");
        assert!(matches!(&again, Error::Elsewhere { id, .. } if *id == made.id), "{again}");
    }
    assert_eq!(list(&a).await.len() + list(&b).await.len(), 20);
    destroy_all(&a).await;
    destroy_all(&b).await;
    nothing_remains([&one, &other]).await;
}

#[tokio::test]
async fn both_together_keep_the_quota_exactly() {
    let (mut one, mut other) = two_worlds();
    let user = Quota { sandboxes: Some(5), ..Quota::default() };
    for world in [&mut one, &mut other] {
        world.policy.quotas = Quotas { user, ..Quotas::default() };
    }
    let (a, b) = (one.open().await, other.open().await);
    let who = me();
    for _ in 0..5 {
        let asks = (0..12).map(|n| [&a, &b][n % 2].create(&who, SpecDraft::default()));
        let answers = join_all(asks).await;
        let made = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(made, 5, "{answers:?}");
        for refused in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert!(matches!(refused, Error::QuotaExceeded { limit: 5.0, .. }), "{refused}");
        }
        let filter = Filter { limit: usize::MAX, ..Filter::default() };
        let theirs = b.list(&who, &filter).await.expect("a list").items;
        assert!(theirs.iter().all(|view| view.state == State::Running));
        destroy_all(&a).await;
        destroy_all(&b).await;
    }
    nothing_remains([&one, &other]).await;
}
