//! Labels and timeouts: how they change, and that they are enforced.

use std::time::Duration;

use super::world::{LONG, World, create, is_not_found, list, me, reaches};
use crate::error::Error;
use crate::{Broker, ExecDraft, Running};
use sandkeep_core::{OnTimeout, SandboxId, SpecDraft, State, TermsPatch, Timeouts, limits};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn timeout(timeout_secs: u64, on_timeout: OnTimeout) -> SpecDraft {
    let on_timeout = Some(on_timeout);
    SpecDraft { timeout_secs: Some(timeout_secs), on_timeout, ..SpecDraft::default() }
}

fn idle(idle_timeout_secs: u64) -> SpecDraft {
    SpecDraft { idle_timeout_secs: Some(idle_timeout_secs), ..SpecDraft::default() }
}

async fn made(broker: &Broker, draft: SpecDraft) -> SandboxId {
    broker.create(&me(), draft).await.expect("a sandbox").id
}

/// Waits until the sandbox is gone.
async fn goes(broker: &Broker, id: &SandboxId) {
    let handle = broker.shared.find(&me(), id).expect("it is there");
    let mut published = handle.published.clone();
    let gone = async { while published.changed().await.is_ok() {} };
    tokio::time::timeout(LONG, gone).await.expect("it goes");
    assert!(is_not_found(&broker.get(&me(), id).await));
}

/// Runs the reaper and waits for everything that follows. A later verb is queued after the reaper's requests.
async fn looked(broker: &Broker, id: &SandboxId) {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    broker.amend(&me(), id, TermsPatch::default()).await.expect("it is there");
}

async fn runs(broker: &Broker, id: &SandboxId) -> Running {
    let argv = vec!["sleep".to_owned(), "1000000".to_owned()];
    let draft = ExecDraft { argv, ..ExecDraft::default() };
    broker.exec(&me(), id, draft).await.expect("it starts")
}

#[tokio::test]
async fn a_sandbox_goes_at_its_timeout_and_not_before() {
    let world = World::new();
    let broker = world.open().await;
    let view = broker.create(&me(), timeout(60, OnTimeout::Destroy)).await.expect("a sandbox");
    assert_eq!(view.expires_at.expect("it has a timeout"), view.created_at + secs(60));
    let other = create(&broker).await;
    assert_eq!(other.expires_at, None);
    world.clock.advance(secs(59));
    looked(&broker, &view.id).await;
    world.clock.advance(secs(1));
    goes(&broker, &view.id).await;
    assert_eq!(list(&broker).await.len(), 1, "the other one has all the time there is");
}

#[tokio::test]
async fn one_that_is_to_stop_stops_says_why_and_can_be_started_for_another_term() {
    let world = World::new();
    let broker = world.open().await;
    let id = made(&broker, timeout(60, OnTimeout::Stop)).await;
    world.clock.advance(secs(60));
    let view = reaches(&broker, &id, State::Stopped).await;
    assert_eq!(view.reason.as_deref(), Some("its timeout was over"));
    world.clock.advance(secs(1000));
    looked(&broker, &id).await;
    assert_eq!(broker.start(&me(), &id).await.expect("starts").state, State::Running);
    world.clock.advance(secs(59));
    looked(&broker, &id).await;
    assert_eq!(broker.get(&me(), &id).await.expect("it is there").state, State::Running);
    world.clock.advance(secs(1));
    reaches(&broker, &id, State::Stopped).await;
}

#[tokio::test]
async fn keepalive_begins_the_time_anew() {
    let world = World::new();
    let broker = world.open().await;
    let id = made(&broker, timeout(60, OnTimeout::Destroy)).await;
    world.clock.advance(secs(50));
    broker.keepalive(&me(), &id, None).await.expect("in time");
    world.clock.advance(secs(50));
    looked(&broker, &id).await;
    let view = broker.keepalive(&me(), &id, Some(5)).await.expect("in time");
    assert_eq!(view.timeout_secs, Some(5));
    world.clock.advance(secs(5));
    goes(&broker, &id).await;
}

#[tokio::test]
async fn idle_is_who_neither_runs_nor_ran_anything() {
    let world = World::new();
    let broker = world.open().await;
    let id = made(&broker, idle(60)).await;
    let running = runs(&broker, &id).await;
    world.clock.advance(secs(1000));
    looked(&broker, &id).await;
    running.cancel().await.expect("it ends");
    drop(running);
    let activity = broker.shared.find(&me(), &id).expect("it is there").activity.clone();
    let all = u32::try_from(limits::EXECS_PER_SANDBOX_MAX).expect("small");
    let ended = tokio::time::timeout(LONG, activity.places().acquire_many_owned(all)).await;
    drop(ended.expect("it ends").expect("the count stays open"));
    world.clock.advance(secs(59));
    looked(&broker, &id).await;
    broker.keepalive(&me(), &id, None).await.expect("it is there");
    world.clock.advance(secs(59));
    looked(&broker, &id).await;
    world.clock.advance(secs(1));
    goes(&broker, &id).await;
}

#[tokio::test]
async fn a_stopped_sandbox_is_not_idle_but_its_timeout_runs() {
    let world = World::new();
    let broker = world.open().await;
    let id = made(&broker, SpecDraft { timeout_secs: Some(600), ..idle(60) }).await;
    broker.stop(&me(), &id).await.expect("stops");
    world.clock.advance(secs(599));
    looked(&broker, &id).await;
    world.clock.advance(secs(1));
    goes(&broker, &id).await;
}

#[tokio::test]
async fn a_wall_clock_that_is_set_ends_nothing_and_keeps_nothing_alive() {
    let world = World::new();
    let broker = world.open().await;
    let id =
        made(&broker, SpecDraft { idle_timeout_secs: Some(90), ..timeout(60, OnTimeout::Destroy) })
            .await;
    let wall = broker.shared.clock.wall();
    world.clock.set_wall(wall + secs(1_000_000));
    world.clock.advance(secs(1));
    looked(&broker, &id).await;
    let expires = broker.get(&me(), &id).await.expect("it is there").expires_at.expect("set");
    assert_eq!(expires, wall + secs(1_000_060), "it is told by the clock as it goes now");
    world.clock.set_wall(wall - secs(1_000_000));
    world.clock.advance(secs(58));
    looked(&broker, &id).await;
    world.clock.advance(secs(1));
    goes(&broker, &id).await;
}

#[tokio::test]
async fn a_restarted_daemon_keeps_to_the_same_deadlines() {
    let world = World::new();
    let broker = world.open().await;
    let (first, second) = (
        made(&broker, timeout(60, OnTimeout::Destroy)).await,
        made(&broker, timeout(100, OnTimeout::Destroy)).await,
    );
    world.clock.advance(secs(40));
    looked(&broker, &first).await;
    world.crash(broker).await;
    // Nobody is there when the first one's time is over, and the wall clock is set, too.
    world.clock.advance(secs(30));
    world.clock.set_wall(jiff::Timestamp::UNIX_EPOCH);
    let broker = world.open().await;
    if broker.get(&me(), &first).await.is_ok() {
        goes(&broker, &first).await;
    }
    world.clock.advance(secs(29));
    looked(&broker, &second).await;
    world.clock.advance(secs(1));
    goes(&broker, &second).await;
}

#[tokio::test]
async fn after_a_reboot_with_a_clock_that_lost_its_battery_time_still_passes() {
    let world = World::new();
    let broker = world.open().await;
    let id = made(&broker, timeout(60, OnTimeout::Destroy)).await;
    world.crash(broker).await;
    world.runtime.kill(&id);
    world.clock.reboot();
    world.clock.set_wall(jiff::Timestamp::UNIX_EPOCH);
    let mut parts = world.parts();
    parts.data.pretend_boot("second boot");
    let broker = Broker::open(parts).await.expect("a broker");
    world.clock.advance(secs(59));
    looked(&broker, &id).await;
    world.clock.advance(secs(1));
    goes(&broker, &id).await;
}

#[tokio::test]
async fn how_long_it_was_idle_is_known_to_the_next_daemon() {
    let world = World::new();
    let broker = world.open().await;
    let id = made(&broker, idle(600)).await;
    world.clock.advance(secs(300));
    drop(runs(&broker, &id).await.cancel().await);
    world.clock.advance(limits::REAPER_INTERVAL);
    let noted = world.home(&id).join("activity.json");
    let wait = async {
        while !noted.exists() {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("it is noted down");
    let before = broker.get(&me(), &id).await.expect("it is there").last_activity_at;
    let broker = world.reopen(broker).await;
    let after = broker.get(&me(), &id).await.expect("adopted");
    assert_eq!(after.last_activity_at, before);
    world.clock.advance(secs(560));
    looked(&broker, &id).await;
    world.clock.advance(secs(40) + limits::REAPER_INTERVAL);
    goes(&broker, &id).await;
}

#[tokio::test]
async fn a_graceful_end_leaves_word_of_the_last_activity() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    world.clock.advance(secs(7));
    broker.keepalive(&me(), &id, None).await.expect("it is there");
    let before = broker.get(&me(), &id).await.expect("it is there");
    broker.shutdown().await;
    let broker = world.reopen(broker).await;
    assert_eq!(broker.get(&me(), &id).await.expect("adopted"), before);
}

#[tokio::test]
async fn a_command_that_an_earlier_daemon_left_running_is_activity() {
    let world = World::new();
    let broker = world.open().await;
    let id = made(&broker, idle(60)).await;
    drop(runs(&broker, &id).await);
    world.crash(broker).await;
    world.clock.advance(secs(10_000));
    let broker = world.open().await;
    looked(&broker, &id).await;
    assert_eq!(broker.get(&me(), &id).await.expect("it is there").state, State::Running);
}

#[tokio::test]
async fn new_terms_are_kept_by_the_next_daemon_and_by_the_one_without_a_registry() {
    let mut world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let patch = serde_json::json!({
        "labels": { "team": "blue" }, "timeout_secs": 600, "idle_timeout_secs": 60, "on_timeout": "stop",
    });
    let patch: TermsPatch = serde_json::from_value(patch).expect("a patch");
    let changed = broker.amend(&me(), &id, patch).await.expect("changed");
    assert_eq!(changed.labels.get("team").map(String::as_str), Some("blue"));
    assert_eq!((changed.timeout_secs, changed.idle_timeout_secs), (Some(600), Some(60)));
    assert!(changed.expires_at.is_some());
    let broker = world.reopen(broker).await;
    let again = broker.get(&me(), &id).await.expect("kept");
    assert_eq!((&again.labels, &again.expires_at), (&changed.labels, &changed.expires_at));
    world.crash(broker).await;
    world.store = Default::default();
    let broker = world.open().await;
    let adopted = broker.get(&me(), &id).await.expect("adopted");
    assert_eq!((&adopted.labels, &adopted.expires_at), (&changed.labels, &changed.expires_at));
}

#[tokio::test]
async fn terms_that_are_wrong_or_cannot_be_written_change_nothing() {
    use std::sync::atomic::Ordering;
    let mut world = World::new();
    world.policy.timeouts = Timeouts { max_timeout: Some(secs(100)), ..Timeouts::default() };
    let broker = world.open().await;
    let view = create(&broker).await;
    assert_eq!(view.timeout_secs, Some(100), "nobody lives longer here");
    let patch = |timeout| TermsPatch { timeout_secs: Some(timeout), ..TermsPatch::default() };
    for wrong in [Some(101), Some(0), None] {
        let error = broker.amend(&me(), &view.id, patch(wrong)).await.expect_err("refused");
        assert!(matches!(&error, Error::InvalidSpec(e) if e.field == "timeout_secs"), "{error}");
    }
    world.failing_writes.store(1, Ordering::SeqCst);
    broker.amend(&me(), &view.id, patch(Some(50))).await.expect_err("the store fails");
    assert_eq!(broker.get(&me(), &view.id).await.expect("it is there"), view);
}
