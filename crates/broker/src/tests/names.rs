//! Names of sandboxes: chosen, derived, changed, and never left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::world::{World, create, list, me};
use crate::error::Error;
use crate::{Broker, View};
use sandkeep_core::failpoint::{self, simulated};
use sandkeep_core::{Principal, SandboxName, Scope, Scopes, SpecDraft, TermsPatch};
use sandkeep_store::MemoryStore;

fn called(name: &str) -> SpecDraft {
    SpecDraft { name: Some(name.parse().expect("a name")), ..SpecDraft::default() }
}

fn renaming(name: Option<&str>) -> TermsPatch {
    let name = name.map(|name| name.parse().expect("a name"));
    TermsPatch { name: Some(name), ..TermsPatch::default() }
}

/// One who sees no more than its own.
fn user(name: &str) -> Principal {
    let scopes = Scopes::from_iter([Scope::Write]);
    Principal { user: name.to_owned(), scopes, ..me() }
}

async fn resolves(broker: &Broker, name: &str, expected: &View) {
    let found = broker.resolve(&me(), name).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found, expected.id, "{name}");
}

async fn leads_nowhere(broker: &Broker, name: &str) {
    let found = broker.resolve(&me(), name).await;
    assert!(matches!(found, Err(Error::NameNotFound { .. })), "{name}: {found:?}");
}

#[tokio::test]
async fn a_taken_name_is_refused_with_the_id_of_its_holder_and_only_within_its_owner() {
    let world = World::new();
    let broker = world.open().await;
    let (ann, bob) = (user("ann"), user("bob"));
    let first = broker.create(&ann, called("web")).await.expect("a sandbox");
    assert_eq!(first.name.as_str(), "web");
    let refused = broker.create(&ann, called("web")).await.expect_err("taken");
    assert!(
        matches!(&refused, Error::NameTaken { holder, .. } if *holder == first.id),
        "{refused}"
    );
    assert_eq!(list(&broker).await.len(), 1, "nothing is left of the one that was refused");
    let bobs = broker.create(&bob, called("web")).await.expect("another user's");
    let elsewhere = SpecDraft { project: Some("api".to_owned()), ..called("web") };
    broker.create(&ann, elsewhere).await.expect("another project's");
    assert_eq!(broker.resolve(&bob, "web").await.expect("his own"), bobs.id);
    assert_eq!(broker.resolve(&ann, "web").await.expect("that of her own project"), first.id);
    // An administrator sees all of them and has to say which one is meant.
    let ambiguous = broker.resolve(&me(), "web").await;
    assert!(
        matches!(&ambiguous, Err(Error::NameAmbiguous { ids, .. }) if ids.len() == 3),
        "{ambiguous:?}"
    );
    broker.destroy(&ann, &first.id).await.expect("goes");
    broker.create(&ann, called("web")).await.expect("it is free again");
}

#[tokio::test]
async fn a_failed_create_gives_its_name_back() {
    let world = World::new();
    let broker = world.open().await;
    world.storage.failing_creates.store(1, Ordering::SeqCst);
    broker.create(&me(), called("web")).await.expect_err("no volume");
    assert_eq!(world.remains().await, [""; 0]);
    let slot = |name| SpecDraft { slot: Some("s".parse().expect("a slot")), ..called(name) };
    let first = broker.create(&me(), slot("web")).await.expect("it is free");
    broker.create(&me(), slot("other")).await.expect_err("its slot is taken");
    broker.destroy(&me(), &first.id).await.expect("goes");
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn of_a_hundred_creates_under_one_name_one_is_made() {
    let world = World::new();
    let broker = world.open().await;
    let who = me();
    let creates = (0..100).map(|_| broker.create(&who, called("web")).boxed());
    let answers = join_all(creates).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    let left = list(&broker).await;
    assert_eq!(left.len(), 1);
    resolves(&broker, "web", &left[0]).await;
}

#[tokio::test]
async fn without_a_name_a_sandbox_has_a_readable_one_that_costs_nothing() {
    let world = World::new();
    let broker = world.open().await;
    let view = create(&broker).await;
    assert_eq!(view.name, SandboxName::derived(&view.id));
    resolves(&broker, view.name.as_str(), &view).await;
    let remains = world.remains().await;
    assert!(!remains.iter().any(|place| place.starts_with("names")), "{remains:?}");
    let broker = world.reopen(broker).await;
    resolves(&broker, view.name.as_str(), &view).await;
    let hers = broker.resolve(&user("ann"), view.name.as_str()).await;
    assert!(matches!(hers, Err(Error::NameNotFound { .. })), "another's: {hers:?}");
    broker.destroy(&me(), &view.id).await.expect("goes");
    leads_nowhere(&broker, view.name.as_str()).await;
}

#[tokio::test]
async fn a_renamed_sandbox_is_found_by_its_new_name_alone() {
    let mut world = World::new();
    let broker = world.open().await;
    let first = broker.create(&me(), called("web")).await.expect("a sandbox");
    let other = broker.create(&me(), called("db")).await.expect("a sandbox");
    let refused = broker.amend(&me(), &first.id, renaming(Some("db"))).await.expect_err("taken");
    assert!(matches!(&refused, Error::NameTaken { holder, .. } if *holder == other.id));
    resolves(&broker, "web", &first).await;
    let renamed = broker.amend(&me(), &first.id, renaming(Some("api"))).await.expect("renamed");
    assert_eq!(renamed.name.as_str(), "api");
    resolves(&broker, "api", &first).await;
    leads_nowhere(&broker, "web").await;
    let again = broker.create(&me(), called("web")).await.expect("the old name is free");
    let nameless = broker.amend(&me(), &first.id, renaming(None)).await.expect("renamed");
    assert_eq!(nameless.name, SandboxName::derived(&first.id));
    leads_nowhere(&broker, "api").await;
    // The name is in the home as well, for the day on which the registry is lost.
    world.crash(broker).await;
    world.store = Arc::new(MemoryStore::new());
    let broker = world.open().await;
    for (name, view) in [("web", &again), ("db", &other), (nameless.name.as_str(), &first)] {
        resolves(&broker, name, view).await;
    }
    let refused = broker.create(&me(), called("db")).await.expect_err("it was adopted");
    assert!(matches!(refused, Error::NameTaken { .. }), "{refused}");
}

#[tokio::test]
async fn after_a_crash_in_a_rename_the_sandbox_has_one_of_both_names_and_the_other_is_free() {
    for point in failpoint::ALL.iter().filter(|point| point.starts_with("rename.")) {
        let world = World::new();
        let broker = world.open().await;
        let view = broker.create(&me(), called("old")).await.expect("a sandbox");
        simulated::arm(point);
        broker.amend(&me(), &view.id, renaming(Some("new"))).await.expect_err(point);
        assert!(simulated::has_fired(), "{point} is not on the way");
        let broker = world.reopen(broker).await;
        let kept = broker.get(&me(), &view.id).await.expect(point);
        let renamed = ["rename.after_row", "rename.after_free"].contains(point);
        let (has, free) = if renamed { ("new", "old") } else { ("old", "new") };
        assert_eq!(kept.name.as_str(), has, "{point}");
        resolves(&broker, has, &view).await;
        let other = broker.create(&me(), called(free)).await.expect(point);
        let refused = broker.create(&me(), called(has)).await.expect_err(point);
        assert!(matches!(refused, Error::NameTaken { .. }), "{point}: {refused}");
        for id in [&view.id, &other.id] {
            broker.destroy(&me(), id).await.expect(point);
        }
        assert_eq!(world.remains().await, [""; 0], "{point}");
    }
}

#[tokio::test]
async fn a_rename_whose_outcome_cannot_be_written_changes_nothing() {
    let world = World::new();
    let broker = world.open().await;
    let view = broker.create(&me(), called("old")).await.expect("a sandbox");
    world.failing_writes.store(1, Ordering::SeqCst);
    broker.amend(&me(), &view.id, renaming(Some("new"))).await.expect_err("it cannot be written");
    world.failing_writes.store(0, Ordering::SeqCst);
    assert_eq!(broker.get(&me(), &view.id).await.expect("it is there").name.as_str(), "old");
    resolves(&broker, "old", &view).await;
    leads_nowhere(&broker, "new").await;
    broker.create(&me(), called("new")).await.expect("nobody has it");
}
