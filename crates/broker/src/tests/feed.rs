//! Who sees which events.

use super::world::{World, create, me};
use crate::{Broker, EventFilter, Fed, NetworkLogPart};
use sandkeep_core::event::{EventSeq, KindPattern, Kinds};
use sandkeep_core::{Principal, Scope, SpecDraft, limits};

fn principal(organization: &str, user: &str, project: Option<&str>, scope: Scope) -> Principal {
    Principal {
        organization: organization.to_owned(),
        user: user.to_owned(),
        project: project.map(str::to_owned),
        scopes: [Scope::Read, Scope::Write, scope].into_iter().collect(),
    }
}

/// Whose events a principal gets.
async fn owners(broker: &Broker, who: &Principal) -> Vec<String> {
    let page = broker.event_page(who, &EventFilter::default(), None, 100).await.expect("a page");
    let owner = |event: &sandkeep_core::event::Event| {
        let owner = &event.subject.owner;
        format!("{}/{}/{}", owner.organization, owner.user, owner.project)
    };
    page.items.iter().map(owner).collect()
}

#[tokio::test]
async fn everybody_gets_the_events_of_what_they_may_see_and_no_others() {
    let world = World::new();
    let broker = world.open().await;
    let ann = principal("acme", "ann", None, Scope::Read);
    let bob = principal("acme", "bob", Some("web"), Scope::Read);
    let eve = principal("evil", "ann", None, Scope::Read);
    for who in [&ann, &bob, &eve] {
        broker.create(who, SpecDraft::default()).await.expect("a sandbox");
    }
    let [of_ann, of_bob, of_eve] = ["acme/ann/default", "acme/bob/web", "evil/ann/default"];
    assert_eq!(owners(&broker, &ann).await, [of_ann]);
    assert_eq!(owners(&broker, &bob).await, [of_bob]);
    let elsewhere = principal("acme", "bob", Some("other"), Scope::Read);
    assert!(owners(&broker, &elsewhere).await.is_empty());
    let boss = principal("acme", "boss", None, Scope::Organization);
    assert_eq!(owners(&broker, &boss).await, [of_ann, of_bob]);
    assert_eq!(owners(&broker, &me()).await, [of_ann, of_bob, of_eve], "an admin sees all");
    // The same for those who follow.
    let start = Some(EventSeq::START);
    let mut feed = broker.follow_events(&eve, EventFilter::default(), start).expect("a feed");
    let Some(Fed::Event(event)) = feed.next().await.expect("readable") else { panic!("an event") };
    assert_eq!(event.subject.owner.organization, "evil");
    assert_eq!(feed.next().await.expect("readable"), Some(Fed::UpTo(EventSeq::new(3))));
}

#[tokio::test]
async fn a_page_continues_where_the_one_before_stopped_whatever_the_filter() {
    let world = World::new();
    let broker = world.open().await;
    for _ in 0..7 {
        let id = create(&broker).await.id;
        broker.stop(&me(), &id).await.expect("it stops");
    }
    let stopped: KindPattern = "sandbox.stopped".parse().expect("a kind");
    let filter = EventFilter { kinds: Kinds(vec![stopped]), ..EventFilter::default() };
    let (mut after, mut seqs) = (None, Vec::new());
    loop {
        let page = broker.event_page(&me(), &filter, after, 3).await.expect("a page");
        seqs.extend(page.items.iter().map(|event| event.seq.get()));
        after = Some(page.next);
        if !page.more {
            break;
        }
    }
    assert_eq!(seqs, [2, 4, 6, 8, 10, 12, 14]);
}

#[tokio::test]
async fn an_organization_cannot_take_all_places_of_followers() {
    let world = World::new();
    let broker = world.open().await;
    let greedy = principal("greedy", "ann", None, Scope::Read);
    let follow = |who: &Principal| broker.follow_events(who, EventFilter::default(), None);
    let all: Vec<_> = std::iter::from_fn(|| follow(&greedy).ok()).collect();
    assert_eq!(all.len(), limits::EVENT_FOLLOWERS_MAX / 2);
    follow(&principal("other", "bob", None, Scope::Read)).expect("a place is left");
    drop(all);
    follow(&greedy).expect("what was given back can be had again");
}

#[tokio::test]
async fn readers_of_logs_wait_for_those_of_their_own_organization_alone() {
    let world = World::new();
    let broker = world.open().await;
    let [greedy, other] = ["greedy", "other"].map(|name| principal(name, "ann", None, Scope::Read));
    let hers = broker.create(&greedy, SpecDraft::default()).await.expect("a sandbox").id;
    let mut turns = Vec::new();
    for _ in 0..limits::LOG_READS_TENANT_MAX {
        turns.push(broker.shared.log_reads.wait("greedy").await);
    }
    let filter = EventFilter::default();
    let mut page = Box::pin(broker.event_page(&greedy, &filter, None, 10));
    let mut log = Box::pin(broker.log(&greedy, &hers, 10));
    let part = NetworkLogPart::All;
    let mut network = Box::pin(broker.network_log(&greedy, &hers, part, 10));
    tokio::select! {
        biased;
        _ = &mut page => panic!("it did not wait"),
        _ = &mut log => panic!("it did not wait"),
        _ = &mut network => panic!("it did not wait"),
        read = broker.event_page(&other, &filter, None, 10) => drop(read.expect("a page")),
    }
    turns.clear();
    page.await.expect("a page");
    log.await.expect("a log");
    network.await.expect("a log");
}
