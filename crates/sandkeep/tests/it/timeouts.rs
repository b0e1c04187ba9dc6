//! Sandboxes end at their timeout, under the daemon that created them or a later one.

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, Setup, until};

fn gone(daemon: &Daemon, id: &str) {
    until("its time is over", Patience::Long, || !daemon.ids().contains(&id.to_owned()));
}

fn patch(daemon: &Daemon, id: &str, status: u16, body: &Value) -> Value {
    daemon.expect(status, "PATCH", &format!("/api/v1/sandboxes/{id}"), body)
}

#[test]
fn a_sandbox_goes_at_its_timeout_also_when_no_daemon_was_there() {
    let mut daemon = daemon!();
    let first = daemon.create_with(&json!({ "timeout_secs": 1 }));
    let stays = daemon.create_with(&json!({ "timeout_secs": 100_000 }));
    gone(&daemon, &first);
    let second = daemon.create_with(&json!({ "timeout_secs": 1 }));
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    gone(&daemon, &second);
    assert_eq!(daemon.ids(), [stays.as_str()]);
    assert!(daemon.get(&stays)["expires_at"].is_string());
    daemon.assert_no_leaks();
}

#[test]
fn one_that_is_to_stop_keeps_its_files() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "on_timeout": "stop" }));
    daemon.sh(&id, "echo kept > ~/note").ok();
    patch(&daemon, &id, 200, &json!({ "timeout_secs": 1 }));
    until("it is stopped", Patience::Long, || daemon.state(&id) == "stopped");
    assert_eq!(daemon.get(&id)["reason"], "its timeout was over");
    patch(&daemon, &id, 200, &json!({ "timeout_secs": null }));
    assert_eq!(daemon.verb(&id, "start")["state"], "running");
    assert_eq!(daemon.sh(&id, "cat ~/note").ok(), "kept");
}

#[test]
fn a_running_command_keeps_its_sandbox_from_being_idle() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "idle_timeout_secs": 1 }));
    // It takes longer than the idle timeout, and the sandbox is there at its end.
    assert_eq!(daemon.sh(&id, "sleep 3; echo done").ok(), "done");
    gone(&daemon, &id);
}

#[test]
fn labels_and_timeouts_change_and_survive_kill_9() {
    let mut daemon = daemon!();
    let id = daemon.create_with(&json!({ "labels": { "a": "1", "b": "2" } }));
    let body =
        json!({ "labels": { "a": null, "c": "3" }, "timeout_secs": 5000, "on_timeout": "stop" });
    let view = patch(&daemon, &id, 200, &body);
    assert_eq!(view["labels"], json!({ "b": "2", "c": "3" }));
    assert_eq!((&view["timeout_secs"], &view["on_timeout"]), (&json!(5000), &json!("stop")));
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    let kept = daemon.get(&id);
    assert_eq!((&kept["labels"], &kept["expires_at"]), (&view["labels"], &view["expires_at"]));
    let target = format!("/api/v1/sandboxes/{id}/keepalive");
    let later = daemon.expect(200, "POST", &target, &json!({ "timeout_secs": 9000 }));
    assert_eq!(later["timeout_secs"], 9000);
    assert!(later["expires_at"].as_str() > kept["expires_at"].as_str(), "{later}");
    for (body, field) in [
        (json!({ "timeout_secs": 0 }), "timeout_secs"),
        (json!({ "idle_timeout_secs": -1 }), "idle_timeout_secs"),
        (json!({ "on_timeout": "explode" }), "on_timeout"),
        (json!({ "runtime": "native" }), "runtime"),
    ] {
        let problem = patch(&daemon, &id, 400, &body);
        assert!(problem["detail"].as_str().expect("a detail").contains(field), "{problem}");
    }
}
