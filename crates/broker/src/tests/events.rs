//! Every outcome is published once, by the daemon that records it or by the next one.

use std::collections::BTreeMap;

use super::time::{forks, name, names, snapshot};
use super::world::{World, create, list, me};
use crate::records::events::Cursor;
use crate::{Broker, Delivery, ExecDraft, KeyChange, OnExecs, Quota, Quotas};
use sandkeep_core::event::{Event, EventKind, EventSeq};
use sandkeep_core::failpoint::simulated;
use sandkeep_core::{Code, ExecId, SandboxId, SpecDraft, State};

/// All events that are kept.
pub(super) fn all(broker: &Broker) -> Vec<Event> {
    let (mut cursor, mut events) = (Cursor::new(EventSeq::START), Vec::new());
    loop {
        let batch = cursor.read(&broker.shared.events).expect("a readable log");
        if batch.is_empty() {
            return events;
        }
        events.extend(batch.into_iter().map(|delivery| match delivery {
            Delivery::Event(event) => *event,
            Delivery::Gap { oldest, .. } => panic!("a gap before {oldest}"),
        }));
    }
}

/// The names of kinds, as they are written.
fn kinds(events: &[Event]) -> Vec<String> {
    let kind = |event: &Event| {
        let value = serde_json::to_value(event).expect("JSON");
        value["kind"].as_str().expect("a kind").to_owned()
    };
    events.iter().map(kind).collect()
}

/// The events match the facts: each sandbox, state, snapshot and end of an exec occurs once.
pub(super) async fn events_are_true(broker: &Broker, point: &str) {
    let events = all(broker);
    assert!(events.is_sorted_by(|a, b| a.seq < b.seq), "{point}: {events:?}");
    let mut states: BTreeMap<SandboxId, State> = BTreeMap::new();
    let mut snapshots: BTreeMap<SandboxId, Vec<String>> = BTreeMap::new();
    let mut ended: Vec<ExecId> = Vec::new();
    for event in &events {
        let Some(id) = event.subject.sandbox.clone() else { continue };
        match &event.kind {
            EventKind::SandboxCreated { .. } => {
                assert_eq!(states.insert(id, State::Running), None, "{point}: made twice");
            }
            EventKind::SandboxDestroyed { .. } => {
                assert!(states.remove(&id).is_some(), "{point}: destroyed twice: {events:?}");
                snapshots.remove(&id);
            }
            EventKind::SnapshotCreated(made) | EventKind::TurnCompleted { snapshot: made, .. } => {
                snapshots.entry(id).or_default().push(made.name.to_string());
            }
            EventKind::SnapshotDeleted { name } | EventKind::SnapshotPruned { name } => {
                snapshots.entry(id).or_default().retain(|kept| kept != name.as_str());
            }
            EventKind::ExecEnded { exec, .. } => {
                assert!(!ended.contains(exec), "{point}: ended twice");
                ended.push(exec.clone());
            }
            kind => {
                if let Some(state) = kind.state() {
                    let before = states.insert(id, state);
                    assert!(before.is_some(), "{point}: told before its creation: {events:?}");
                }
            }
        }
    }
    let views = list(broker).await;
    let there: BTreeMap<SandboxId, State> =
        views.iter().map(|view| (view.id.clone(), view.state)).collect();
    assert_eq!(states, there, "{point}: {events:?}");
    for view in &views {
        let mut told = snapshots.remove(&view.id).unwrap_or_default();
        let mut recorded = names(broker, &view.id);
        // It is made with the sandbox, so nothing is told of it.
        recorded.retain(|name| name != "base");
        told.sort();
        recorded.sort();
        // A snapshot whose removal was recorded and not published before a crash is gone all the same.
        told.retain(|name| !point.starts_with("prune") || recorded.contains(name));
        assert_eq!(told, recorded, "{point}: {events:?}");
    }
}

fn script(text: &str) -> ExecDraft {
    let argv = ["sh", "-c", text].map(str::to_owned).to_vec();
    let env = [("TOKEN".to_owned(), "a-secret-value".to_owned())].into();
    ExecDraft { argv, env, ..ExecDraft::default() }
}

async fn run(broker: &Broker, id: &SandboxId, text: &str) {
    let mut running = broker.exec(&me(), id, script(text)).await.expect("it starts");
    while running.next().await.is_some() {}
}

#[tokio::test]
async fn each_verb_is_told_by_its_own_events_in_order() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    run(&broker, &id, "echo a-secret-output; exit 3").await;
    broker.stop(&me(), &id).await.expect("it stops");
    broker.stop(&me(), &id).await.expect("it is stopped, and that is no news");
    snapshot(&broker, &id, "mine").await;
    broker.seal_turn(&me(), &id, None).await.expect("a turn");
    broker.rollback(&me(), &id, &name("mine"), OnExecs::Refuse).await.expect("a rollback");
    broker.fork(&me(), &id, forks(Some("mine"), 1), None).await.expect("a fork");
    broker.start(&me(), &id).await.expect("it starts");
    broker.delete_snapshot(&me(), &id, &name("mine")).await.expect("it goes");
    broker.destroy(&me(), &id).await.expect("it goes");
    let events = all(&broker);
    let expected = [
        "sandbox.created",
        "exec.started",
        "exec.ended",
        "sandbox.stopped",
        "snapshot.created",
        "turn.completed",
        "sandbox.rolled_back",
        "sandbox.created",
        "sandbox.forked",
        "sandbox.started",
        "snapshot.deleted",
        "sandbox.destroyed",
    ];
    assert_eq!(kinds(&events), expected);
    let seqs: Vec<u64> = events.iter().map(|event| event.seq.get()).collect();
    assert_eq!(seqs, (1..=12).collect::<Vec<u64>>());
    let ended = serde_json::to_value(&events[2]).expect("JSON");
    assert_eq!(
        (&ended["data"]["status"], &ended["data"]["exit_code"]),
        (&"exited".into(), &3.into())
    );
    assert_eq!(ended["owner"]["organization"], "local");
    assert_eq!(ended["sandbox"], id.as_str());
    let text = serde_json::to_string(&events).expect("JSON");
    assert!(!text.contains("secret") && !text.contains("exit 3"), "{text}");
    events_are_true(&broker, "at the end").await;
}

#[tokio::test]
async fn a_restart_tells_nothing_that_was_told_before() {
    let world = World::new();
    let broker = world.open().await;
    let (running, stopped) = (create(&broker).await.id, create(&broker).await.id);
    run(&broker, &running, "true").await;
    broker.stop(&me(), &stopped).await.expect("it stops");
    snapshot(&broker, &stopped, "mine").await;
    let before = all(&broker);
    let broker = world.reopen(world.reopen(broker).await).await;
    assert_eq!(all(&broker), before);
    broker.destroy(&me(), &running).await.expect("it goes");
    assert_eq!(all(&broker).len(), before.len() + 1);
    events_are_true(&broker, "at the end").await;
}

#[tokio::test]
async fn the_end_of_an_exec_is_told_once_wherever_the_daemon_dies() {
    for point in
        ["exec.after_start", "exec.after_end", "exec.after_event", "exec.after_journal_end"]
    {
        let world = World::new();
        let broker = world.open().await;
        let id = create(&broker).await.id;
        let (inside, sandbox) = (broker.clone(), id.clone());
        simulated::arm(point);
        let crashed = tokio::spawn(async move { run(&inside, &sandbox, "exit 3").await }).await;
        assert!(crashed.is_err() && simulated::has_fired(), "{point} is not on the way");
        let broker = world.reopen(broker).await;
        let ended = |event: &Event| matches!(event.kind, EventKind::ExecEnded { .. });
        let mut told = broker.events(Some(EventSeq::START));
        while let Ok(Delivery::Event(event)) = told.next().await
            && !ended(&event)
        {}
        // All other events of the new daemon come before this one.
        broker.stop(&me(), &id).await.expect("it stops");
        assert_eq!(all(&broker).iter().filter(|event| ended(event)).count(), 1, "{point}");
        events_are_true(&broker, point).await;
    }
}

#[tokio::test]
async fn the_log_of_a_sandbox_outlives_the_events_and_repeats_none() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    broker.stop(&me(), &id).await.expect("it stops");
    let before = broker.log(&me(), &id, 10).await.expect("a log");
    assert_eq!(before.len(), 2, "{before:?}");
    world.crash(broker).await;
    // Simulates a daemon that died between writing the lines and the cursor.
    let cursor = world.data().join("events/timelines");
    std::fs::remove_file(&cursor).expect("there is a cursor");
    let broker = world.open().await;
    assert_eq!(broker.log(&me(), &id, 10).await.expect("a log"), before);
    world.crash(broker).await;
    std::fs::remove_dir_all(world.data().join("events")).expect("there is a log");
    let broker = world.open().await;
    assert_eq!(broker.log(&me(), &id, 10).await.expect("a log"), before);
    broker.start(&me(), &id).await.expect("it starts");
    assert_eq!(broker.log(&me(), &id, 10).await.expect("a log").len(), 3);
}

#[tokio::test]
async fn refusals_by_policy_and_keys_are_told() {
    let mut world = World::new();
    let user = Quota { sandboxes: Some(0), ..Quota::default() };
    world.policy.quotas = Quotas { user, ..Quotas::default() };
    let broker = world.open().await;
    let refused = broker.create(&me(), SpecDraft::default()).await.expect_err("no place");
    broker.note_refusal(&me(), refused.code());
    broker.note_refusal(&me(), refused.code());
    broker.note_refusal(&me(), Code::NotFound);
    let info = serde_json::from_value(serde_json::json!({
        "id": "key_0123456789abcdef", "organization": "acme", "user": "ann",
        "scopes": ["read"], "created_at": "2026-01-01T00:00:00Z",
    }));
    let info = info.expect("a key");
    broker.note_key(&info, KeyChange::Made);
    broker.note_key(&info, KeyChange::Revoked);
    let events = all(&broker);
    assert_eq!(kinds(&events), ["policy.refused", "key.created", "key.revoked"]);
    assert_eq!(events[1].subject.owner.organization, "acme");
}

#[tokio::test]
async fn after_the_loss_of_the_log_a_creation_is_told_once_more_and_not_at_each_start() {
    let world = World::new();
    let broker = world.open().await;
    let ids = [create(&broker).await.id, create(&broker).await.id];
    for id in &ids {
        broker.stop(&me(), id).await.expect("stops");
        broker.start(&me(), id).await.expect("starts");
        broker.log(&me(), id, 10).await.expect("timelines are copied");
    }
    world.crash(broker).await;
    let logs = std::fs::read_dir(world.data().join("events")).expect("a log");
    for file in logs.map(|entry| entry.expect("an entry").path()) {
        if file.extension().is_some_and(|extension| extension == "log") {
            std::fs::remove_file(file).expect("removed");
        }
    }
    for id in &ids {
        std::fs::remove_file(world.home(id).join("timeline")).expect("a timeline");
    }
    let mut broker = world.open().await;
    for _ in 0..3 {
        broker = world.reopen(broker).await;
    }
    let created = |id: &SandboxId| {
        let made = |event: &&Event| matches!(event.kind, EventKind::SandboxCreated { .. });
        let of = |event: &&Event| event.subject.sandbox.as_ref() == Some(id);
        all(&broker).iter().filter(made).filter(of).count()
    };
    assert_eq!(ids.each_ref().map(created), [1, 1]);
}
