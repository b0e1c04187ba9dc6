//! The events of a daemon on NATS: read by the official client for Python (`tests/natspy/consume.py`) from a real
//! nats-server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::events::{all, work};
use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, obstacle, sandkeep, top, until};
use server::Server;

#[path = "../../../nats/tests/it/server.rs"]
mod server;

const STREAM: &str = "EVENTS";

fn python() -> PathBuf {
    top().join("target/natspy/bin/python3")
}

fn missing() -> Option<&'static str> {
    let client =
        (!python().exists()).then_some("nats-py is not installed; ./test does it from PyPI");
    obstacle().or(server::missing()).or(client)
}

fn publishing_to(server: &Server) -> Setup {
    Setup::default()
        .env("NATS_URL", &server.url())
        .env("SANDKEEP_NATS_STREAM", STREAM)
        .env("SANDKEEP_NATS_CREATE_STREAM", "true")
        .env("SANDKEEP_NATS_STREAM_MAX_MB", "64")
}

/// All messages of a stream, in its order.
fn consume(server: &Server, stream: &str) -> Vec<Value> {
    let ran = Command::new(python())
        .arg(top().join("tests/natspy/consume.py"))
        .args([&server.url(), stream])
        .output()
        .expect("it runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let lines = ran.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
}

/// Until the publisher of this name has nothing left to do.
fn arrived(daemon: &Daemon, publisher: &str) {
    let position = daemon.data_dir().join("events/positions").join(publisher);
    until("all events have arrived", Patience::Long, || {
        let last = all(daemon).last().map_or(0, |event| event.seq.get());
        std::fs::read_to_string(&position).is_ok_and(|text| text.trim() == last.to_string())
    });
}

#[test]
fn every_event_is_published_once_and_in_order_though_daemon_and_server_are_killed() {
    skip_if!(missing());
    let mut server = Server::start();
    let setup = publishing_to(&server);
    let mut daemon = Daemon::start_with(&setup);
    for round in 0..3 {
        let answers = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| work(&daemon, &answers));
            }
            let answered = |what: &str, count| {
                until(what, Patience::Long, || answers.load(Ordering::Relaxed) >= count);
            };
            answered("some requests are answered", 15);
            server.kill_9();
            answered("more are answered without a server", 30);
            if round != 1 {
                server.run();
                answered("and with one again", 45);
            }
            crate::crash::kill_9(daemon.pid());
        });
        daemon.wait_for_end();
        if round == 1 {
            server.run();
        }
        daemon.start_again(&setup);
        daemon.ids().iter().for_each(|id| daemon.destroy(id));
    }
    arrived(&daemon, "nats");
    let found = consume(&server, STREAM);
    let ids: BTreeSet<&str> = found.iter().filter_map(|one| one["event"]["id"].as_str()).collect();
    assert_eq!(ids.len(), found.len(), "each is there once");
    let instance = daemon.instance();
    let expected: BTreeSet<String> =
        all(&daemon).iter().map(|event| format!("{instance}-{}", event.seq)).collect();
    let missing: Vec<_> = expected.iter().filter(|id| !ids.contains(id.as_str())).collect();
    assert!(missing.is_empty() && ids.len() == expected.len(), "missing: {missing:?}");
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    for event in found.iter().map(|one| &one["event"]) {
        let sandbox = event["subject"].as_str().unwrap_or_default();
        let sequence = event["sequence"].as_str().expect("a sequence");
        let before = last.insert(sandbox, sequence);
        assert!(before.is_none_or(|before| before < sequence), "{sandbox}: {sequence}");
    }
}

#[test]
fn urule_hears_of_its_sessions_and_of_no_other_sandbox() {
    skip_if!(missing());
    let server = Server::start();
    let daemon = Daemon::start_with(&publishing_to(&server));
    let other = daemon.create();
    let body = json!({ "workspaceId": "ws-1", "runtimeProfile": "node-20" });
    let session = daemon.expect(201, "POST", "/api/v1/sessions", &body);
    let id = session["sessionId"].as_str().expect("an id").to_owned();
    daemon.expect(204, "DELETE", &format!("/api/v1/sessions/{id}"), &Value::Null);
    daemon.destroy(&other);
    arrived(&daemon, "urule");
    let found = consume(&server, "URULE");
    let told: Vec<(&str, &Value)> = found
        .iter()
        .map(|one| (one["subject"].as_str().expect("a subject"), &one["event"]))
        .collect();
    let subjects: Vec<&str> = told.iter().map(|(subject, _)| *subject).collect();
    let expected = ["allocated", "ready", "terminated"];
    assert_eq!(subjects, expected.map(|action| format!("urule.runtime.session.{action}")));
    for (subject, event) in told {
        assert_eq!(event["type"], *subject);
        assert_eq!((&event["version"], &event["correlationId"]), (&json!(1), &json!(id)));
        let data = &event["data"];
        assert_eq!((&data["sessionId"], &data["workspaceId"]), (&json!(id), &json!("ws-1")));
        assert_eq!(
            (&data["runtimeProfile"], &data["provider"]),
            (&json!("node-20"), &json!("native"))
        );
        assert_eq!(event["id"].as_str().map(str::len), Some(26), "a ULID");
    }
}

#[test]
fn a_daemon_without_its_nats_server_serves_is_ready_and_says_so() {
    skip_if!(missing());
    let mut server = Server::prepared("");
    let mut daemon = Daemon::start_with(&publishing_to(&server));
    let id = daemon.create();
    let health = daemon.expect(200, "GET", "/readyz", &Value::Null);
    let service = &health["services"][0];
    assert_eq!((&service["name"], &service["connected"]), (&json!("nats"), &json!(false)));
    until("the log says so", Patience::Long, || daemon.said().contains("NATS: cannot connect"));
    server.run();
    arrived(&daemon, "nats");
    daemon.destroy(&id);
    arrived(&daemon, "nats");
    until("the health check says so", Patience::Long, || {
        let service = &daemon.expect(200, "GET", "/readyz", &Value::Null)["services"][0];
        service["connected"] == json!(true)
            && service["behind"] == json!(0)
            && service["problem"].is_null()
    });
    assert_eq!(consume(&server, STREAM).len(), all(&daemon).len());
    assert!(daemon.stop().success());
}

#[test]
fn files_for_nats_that_cannot_be_read_stop_the_start_with_their_name() {
    let data = tempfile::tempdir().expect("a temp dir");
    let arguments = [
        "serve",
        "--listen=127.0.0.1:0",
        "--nats-url=nats://127.0.0.1:1",
        "--nats-nkey=/nonexistent/seed",
        "--data-dir",
    ];
    let ran = sandkeep(arguments, data.path());
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("/nonexistent/seed"), "{}", ran.stderr);
}
