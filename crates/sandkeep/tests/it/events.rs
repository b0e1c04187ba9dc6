//! The event log has every acknowledged outcome once, whatever happens to the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use sandkeep_broker::recorded_events;
use sandkeep_core::event::{Event, EventKind};
use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, Setup, until};

pub fn all(daemon: &Daemon) -> Vec<Event> {
    recorded_events(&daemon.data_dir()).expect("a readable log")
}

/// What a client was told, as often as it was told so.
#[derive(Default)]
pub struct Acknowledged(BTreeMap<String, usize>);

impl Acknowledged {
    fn add(&mut self, what: String) {
        *self.0.entry(what).or_default() += 1;
    }
}

/// The same as the events tell it.
fn told(events: &[Event]) -> BTreeMap<String, usize> {
    let mut told = Acknowledged::default();
    for event in events {
        let id = event.subject.sandbox.as_ref().map(ToString::to_string).unwrap_or_default();
        match &event.kind {
            EventKind::SandboxCreated { .. } => told.add(format!("created {id}")),
            EventKind::SandboxStopped { .. } => told.add(format!("stopped {id}")),
            EventKind::SandboxStarted {} => told.add(format!("started {id}")),
            EventKind::SandboxDestroyed { .. } => told.add(format!("destroyed {id}")),
            EventKind::ExecStarted { exec, .. } => told.add(format!("began {exec}")),
            EventKind::ExecEnded { exec, .. } => told.add(format!("ended {exec}")),
            _ => {}
        }
    }
    told.0
}

/// Works until the daemon does not answer any more; returns everything that it answered with success.
pub fn work(daemon: &Daemon, answers: &AtomicUsize) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    let ask = |method: &str, target: &str, body: &Value| {
        let answer = daemon.try_request(method, target, body).ok();
        let (_, value) = answer.filter(|(status, _)| (200..300).contains(status))?;
        answers.fetch_add(1, Ordering::Relaxed);
        Some(value)
    };
    let mut round = || -> Option<()> {
        let view = ask("POST", "/api/v1/sandboxes", &json!({}))?;
        let id = view["id"].as_str()?.to_owned();
        let target = format!("/api/v1/sandboxes/{id}");
        acknowledged.add(format!("created {id}"));
        for _ in 0..6 {
            let exec = ask("POST", &format!("{target}/execs"), &json!({ "command": "true" }))?;
            let exec = exec["exec_id"].as_str()?.to_owned();
            acknowledged.add(format!("began {exec}"));
            acknowledged.add(format!("ended {exec}"));
        }
        for (verb, done) in [("stop", "stopped"), ("start", "started")] {
            ask("POST", &format!("{target}/{verb}"), &Value::Null)?;
            acknowledged.add(format!("{done} {id}"));
        }
        ask("DELETE", &target, &Value::Null)?;
        acknowledged.add(format!("destroyed {id}"));
        Some(())
    };
    while round().is_some() {}
    acknowledged
}

#[test]
fn every_acknowledged_outcome_is_told_once_under_load_and_kill_9() {
    let mut daemon = daemon!();
    let mut acknowledged: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..3 {
        let answers = AtomicUsize::new(0);
        let pid = daemon.pid();
        let seen: Vec<Acknowledged> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(|| work(&daemon, &answers))).collect();
            until("much has been answered", Patience::Long, || {
                answers.load(Ordering::Relaxed) >= 60
            });
            crate::crash::kill_9(pid);
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        });
        acknowledged.extend(seen.into_iter().flat_map(|seen| seen.0));
        daemon.wait_for_end();
        daemon.start_again(&Setup::default());
        for id in daemon.ids() {
            daemon.destroy(&id);
        }
    }
    let events = all(&daemon);
    assert!(events.is_sorted_by(|a, b| a.seq < b.seq), "numbers rise");
    let last = events.last().map(|event| event.seq.get());
    assert_eq!(last, Some(events.len() as u64), "and none is missing");
    let told = told(&events);
    for (what, count) in &acknowledged {
        assert_eq!(told.get(what), Some(count), "{what}");
    }
    let repeated: Vec<_> = told.iter().filter(|(_, count)| **count > 1).collect();
    assert!(repeated.is_empty(), "each of them happens once: {repeated:?}");
    let with = |word: &str| -> BTreeSet<&str> {
        told.keys().filter_map(|what| what.strip_prefix(word)).collect()
    };
    assert_eq!(with("created "), with("destroyed "), "all are gone, and nothing else was told");
}

#[test]
fn keys_and_refusals_are_told_with_their_owner() {
    let mut daemon = daemon!();
    let admin = json!({ "organization": "acme", "user": "root", "scopes": ["admin"] });
    let admin = daemon.expect(201, "POST", "/api/v1/keys", &admin);
    daemon.use_key(admin["key"].as_str().expect("a key"));
    let reader = json!({ "organization": "acme", "user": "ann", "scopes": ["read"] });
    let reader = daemon.expect(201, "POST", "/api/v1/keys", &reader);
    daemon.use_key(reader["key"].as_str().expect("a key"));
    let (status, _) = daemon.request("POST", "/api/v1/sandboxes", &json!({}));
    assert_eq!(status, 403);
    daemon.use_key(admin["key"].as_str().expect("a key"));
    let target = format!("/api/v1/keys/{}", reader["id"].as_str().expect("an id"));
    daemon.expect(204, "DELETE", &target, &Value::Null);
    let events = all(&daemon);
    let seen: Vec<(String, String)> = events
        .iter()
        .map(|event| serde_json::to_value(event).expect("JSON"))
        .map(|event| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (text(&event["kind"]), text(&event["owner"]["user"]))
        })
        .collect();
    let expected = [
        ("key.created", "root"),
        ("key.created", "ann"),
        ("policy.refused", "ann"),
        ("key.revoked", "ann"),
    ];
    assert_eq!(seen, expected.map(|(kind, user)| (kind.to_owned(), user.to_owned())));
    let text = serde_json::to_string(&events).expect("JSON");
    for key in [&admin, &reader] {
        assert!(!text.contains(key["key"].as_str().expect("a key")), "a key is never told");
    }
}
