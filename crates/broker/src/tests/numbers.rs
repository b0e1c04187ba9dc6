//! Quotas, limits, profiles, pages, stats.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::world::{World, create, list, me};
use crate::error::Error;
use crate::{Cursor, ExecDraft, Filter, Order, Policy, Profile, Quota, Quotas, View};
use sandkeep_core::{Principal, SpecDraft, State};

fn quota(sandboxes: u64) -> Quota {
    Quota { sandboxes: Some(sandboxes), ..Quota::default() }
}

#[tokio::test]
async fn a_quota_is_exact_among_many_callers() {
    let mut world = World::new();
    world.policy.quotas = Quotas { organization: quota(7), user: quota(5) };
    let broker = world.open().await;
    let ann = Principal { user: "ann".to_owned(), ..me() };
    let creates = |who| {
        let broker = &broker;
        join_all((0..20).map(move |_| broker.create(who, SpecDraft::default()).boxed()))
    };
    let (mine, hers) = (me(), ann.clone());
    let (mine, hers) = tokio::join!(creates(&mine), creates(&hers));
    let made = |results: &[Result<View, Error>]| results.iter().filter(|one| one.is_ok()).count();
    assert_eq!(made(&mine) + made(&hers), 7);
    assert!(made(&mine) <= 5 && made(&hers) <= 5);
    let refused = mine.iter().chain(&hers).filter_map(|one| one.as_ref().err());
    for error in refused {
        assert!(matches!(error, Error::QuotaExceeded { what: "sandboxes", .. }), "{error}");
    }
    for view in mine.into_iter().chain(hers).flatten() {
        broker.destroy(&me(), &view.id).await.expect("goes");
    }
    for _ in 0..5 {
        broker.create(&ann, SpecDraft::default()).await.expect("all is given back");
    }
}

#[tokio::test]
async fn a_failed_create_gives_back_what_it_took_and_a_restart_forgets_nothing() {
    let mut world = World::new();
    world.policy.quotas.user = quota(1);
    let broker = world.open().await;
    world.storage.failing_creates.store(1, Ordering::SeqCst);
    broker.create(&me(), SpecDraft::default()).await.expect_err("no volume");
    create(&broker).await;
    let broker = world.reopen(broker).await;
    let error = broker.create(&me(), SpecDraft::default()).await.expect_err("there is one");
    assert!(matches!(error, Error::QuotaExceeded { .. }), "{error}");
}

#[tokio::test]
async fn there_are_no_more_sandboxes_and_execs_than_the_policy_allows() {
    let mut world = World::new();
    world.policy.max_sandboxes = 2;
    world.policy.max_concurrent_tasks = 1;
    let broker = world.open().await;
    let id = create(&broker).await.id;
    create(&broker).await;
    let error = broker.create(&me(), SpecDraft::default()).await.expect_err("a third");
    assert!(matches!(error, Error::LimitReached { limit: 2, .. }), "{error}");
    let argv = vec!["sleep".to_owned(), "1000000".to_owned()];
    let draft = ExecDraft { argv, ..ExecDraft::default() };
    let running = broker.exec(&me(), &id, draft.clone()).await.expect("one");
    let error = broker.exec(&me(), &id, draft).await.err().expect("a second");
    assert!(matches!(error, Error::LimitReached { limit: 1, .. }), "{error}");
    running.cancel().await.expect("it ends");
}

#[tokio::test]
async fn a_profile_fills_in_what_was_not_asked_for() {
    let mut world = World::new();
    let profile = Profile {
        labels: [("kind".to_owned(), "small".to_owned())].into(),
        timeout: Some(Duration::from_secs(60)),
        ..Profile::default()
    };
    world.policy = Policy {
        default_profile: Some("small".to_owned()),
        profiles: [("small".to_owned(), profile), ("plain".to_owned(), Profile::default())].into(),
        ..Policy::default()
    };
    let broker = world.open().await;
    let view = create(&broker).await;
    assert_eq!((view.profile.as_deref(), view.timeout_secs), (Some("small"), Some(60)));
    assert_eq!(view.labels.get("kind").map(String::as_str), Some("small"));
    let plain = SpecDraft { profile: Some("plain".to_owned()), ..SpecDraft::default() };
    let view = broker.create(&me(), plain).await.expect("it exists");
    assert_eq!((view.profile.as_deref(), view.timeout_secs), (Some("plain"), None));
    let broker = world.reopen(broker).await;
    assert_eq!(broker.get(&me(), &view.id).await.expect("kept"), view);
}

/// All pages, with an action between any two of them.
async fn walk(broker: &crate::Broker, filter: Filter, mut between: impl AsyncFnMut()) -> Vec<View> {
    let (mut all, mut filter) = (Vec::new(), filter);
    loop {
        let page = broker.list(&me(), &filter).await.expect("a page");
        assert!(page.items.len() <= filter.limit);
        all.extend(page.items);
        let Some(next) = page.next else { return all };
        filter.after = Some(next.to_string().parse::<Cursor>().expect("as it was answered"));
        between().await;
    }
}

#[tokio::test]
async fn every_sandbox_is_on_one_page_whatever_comes_and_goes_meanwhile() {
    let world = World::new();
    let broker = world.open().await;
    let mut stay = Vec::new();
    let mut leave = Vec::new();
    for n in 0..12 {
        let view = create(&broker).await;
        if n % 3 == 0 {
            leave.push(view.id)
        } else {
            stay.push(view.id)
        };
    }
    let filter = Filter { limit: 2, ..Filter::default() };
    let seen = walk(&broker, filter, async || {
        if let Some(id) = leave.pop() {
            broker.destroy(&me(), &id).await.expect("goes");
        }
        create(&broker).await;
    });
    // It comes to an end although there is always one more: each page is further on than that.
    let seen: Vec<_> = seen.await.into_iter().map(|view| view.id).collect();
    for id in &stay {
        assert_eq!(seen.iter().filter(|one| *one == id).count(), 1, "{id}");
    }
}

#[tokio::test]
async fn a_list_is_the_same_from_either_end_and_its_cursors_know_from_which() {
    let world = World::new();
    let broker = world.open().await;
    for _ in 0..5 {
        // Two of each moment: then the id decides.
        create(&broker).await;
        create(&broker).await;
        world.clock.advance(Duration::from_secs(1));
    }
    let of = |order| Filter { limit: 3, order, ..Filter::default() };
    let oldest = walk(&broker, of(Order::OldestFirst), async || {}).await;
    let mut newest = walk(&broker, of(Order::NewestFirst), async || {}).await;
    assert_eq!(newest.len(), 10);
    assert!(newest.is_sorted_by(|a, b| a.created_at >= b.created_at));
    newest.reverse();
    assert_eq!(newest, oldest);
    for (from, to) in
        [(Order::OldestFirst, Order::NewestFirst), (Order::NewestFirst, Order::OldestFirst)]
    {
        let after = broker.list(&me(), &of(from)).await.expect("a page").next;
        let refused = broker.list(&me(), &Filter { after, ..of(to) }).await.expect_err("mixed");
        assert!(matches!(refused, Error::InvalidField { field: "cursor", .. }), "{refused}");
    }
}

#[tokio::test]
async fn a_list_shows_only_what_was_asked_for() {
    let world = World::new();
    let broker = world.open().await;
    let with = |pairs: &[(&str, &str)], project: Option<&str>| SpecDraft {
        labels: Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()),
        project: project.map(str::to_owned),
        ..SpecDraft::default()
    };
    let one = broker.create(&me(), with(&[("a", "1"), ("b", "2")], None)).await.expect("made").id;
    world.clock.advance(Duration::from_secs(1));
    let two = broker.create(&me(), with(&[("a", "1")], Some("web"))).await.expect("made").id;
    broker.stop(&me(), &two).await.expect("stops");
    let ids = async |filter: Filter| -> Vec<_> {
        let page = broker.list(&me(), &filter).await.expect("a list");
        page.items.into_iter().map(|view| view.id).collect()
    };
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let all = [one.clone(), two.clone()];
    assert_eq!(ids(Filter { labels: vec![label("a", "1")], ..Filter::default() }).await, all);
    let both = vec![label("a", "1"), label("b", "2")];
    assert_eq!(ids(Filter { labels: both, ..Filter::default() }).await, [one]);
    let stopped = Filter { states: vec![State::Stopped], ..Filter::default() };
    assert_eq!(ids(stopped).await, std::slice::from_ref(&two));
    let either = Filter {
        states: vec![State::Stopped, State::Running],
        order: Order::NewestFirst,
        ..Filter::default()
    };
    assert_eq!(ids(either).await, [two.clone(), all[0].clone()]);
    let neither = Filter { states: vec![State::Paused, State::Failed], ..Filter::default() };
    assert_eq!(ids(neither).await, []);
    let web = Filter { project: Some("web".to_owned()), ..Filter::default() };
    assert_eq!(ids(web).await, [two]);
    assert_eq!(list(&broker).await.len(), 2);
}

#[tokio::test]
async fn stats_of_a_stopped_sandbox_are_its_disk() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let stats = broker.stats(&me(), &id).await.expect("stats");
    assert!(stats.cpu.is_some() && stats.memory.is_some() && stats.pids.is_some());
    assert_eq!(broker.get(&me(), &id).await.expect("it is there").space_used, Some(0));
    broker.stop(&me(), &id).await.expect("stops");
    let stats = broker.stats(&me(), &id).await.expect("stats");
    assert_eq!(
        (stats.cpu, stats.memory, stats.disk.map(|disk| disk.used_bytes)),
        (None, None, Some(0))
    );
}
