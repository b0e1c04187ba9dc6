//! Paused sandboxes.

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, Setup, until};

/// Something that never rests, in the background.
const RESTLESS: &str = "sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $!";
/// What a sandbox that stands still does not use.
const STILL_SECS: f64 = 0.02;

fn pause(daemon: &Daemon, id: &str, status: u16, body: &Value) -> Value {
    daemon.expect(status, "POST", &format!("/api/v1/sandboxes/{id}/pause"), body)
}

fn cpu_secs(daemon: &Daemon, id: &str) -> f64 {
    let stats = daemon.expect(200, "GET", &format!("/api/v1/sandboxes/{id}/stats"), &Value::Null);
    stats["cpu"]["usage_secs"].as_f64().unwrap_or_else(|| panic!("{stats:#}"))
}

fn assert_stands_still(daemon: &Daemon, id: &str) {
    assert_eq!(daemon.state(id), "paused");
    let before = cpu_secs(daemon, id);
    // Another of its kind gets something done meanwhile.
    let other = daemon.create();
    daemon.sh(&other, RESTLESS).ok();
    until("the other one works", Patience::Long, || cpu_secs(daemon, &other) > 10.0 * STILL_SECS);
    daemon.destroy(&other);
    let used = cpu_secs(daemon, id) - before;
    assert!(used < STILL_SECS, "it used {used} seconds");
}

#[test]
fn what_is_paused_stands_still_and_goes_on_where_it_was() {
    let daemon = daemon!();
    let id = daemon.create();
    let process = daemon.sh(&id, RESTLESS).ok();
    let view = daemon.verb(&id, "pause");
    assert_eq!((&view["state"], &view["operation"]), (&json!("paused"), &Value::Null));
    assert_stands_still(&daemon, &id);
    assert_eq!(daemon.verb(&id, "pause")["state"], "paused", "once more changes nothing");

    let target = format!("/api/v1/sandboxes/{id}/execs");
    let refused = daemon.expect(409, "POST", &target, &json!({ "command": "true" }));
    assert_eq!(refused["code"], "wrong_state");
    assert!(refused["remediation"].to_string().contains("resume"), "{refused:#}");

    assert_eq!(daemon.verb(&id, "resume")["state"], "running");
    let before = cpu_secs(&daemon, &id);
    until("it goes on", Patience::Short, || cpu_secs(&daemon, &id) > before + STILL_SECS);
    assert_eq!(daemon.sh(&id, &format!("cat /proc/{process}/comm")).ok(), "sh");
    assert_eq!(daemon.verb(&id, "resume")["state"], "running", "once more changes nothing");
}

#[test]
fn commands_that_run_hinder_a_pause_and_are_named() {
    let daemon = daemon!();
    let id = daemon.create();
    let exec = daemon.begin(&id, &json!({ "argv": ["sleep", "1001"] }));
    let refused = pause(&daemon, &id, 409, &json!({ "drain_secs": 0 }));
    assert_eq!(refused["code"], "execs_in_flight");
    assert!(refused["detail"].to_string().contains(&exec), "{refused:#}");
    assert_eq!(refused["retryable"], true);
    assert_eq!(daemon.state(&id), "running");
    assert_eq!(daemon.sh(&id, "echo fine").ok(), "fine");

    pause(&daemon, &id, 200, &json!({ "force": true }));
    assert_eq!(daemon.state(&id), "paused");
    daemon.verb(&id, "resume");
    assert_eq!(daemon.exec_view(&id, &exec)["status"], "running");
    let wrong = pause(&daemon, &id, 400, &json!({ "force": true, "drain_secs": 1 }));
    assert!(wrong["detail"].to_string().contains("drain_secs"), "{wrong:#}");
    pause(&daemon, &id, 400, &json!({ "drain_secs": 601 }));
}

#[test]
fn a_pause_waits_for_commands_that_end_in_time() {
    let daemon = daemon!();
    let id = daemon.create();
    let command = "while [ ! -e ~/go ]; do sleep 0.02; done; echo gone";
    let exec = daemon.begin(&id, &json!({ "command": command }));
    std::thread::scope(|scope| {
        let paused = scope.spawn(|| pause(&daemon, &id, 200, &json!({ "drain_secs": 60 })));
        // Others may begin while it waits, and end before it.
        daemon.sh(&id, "touch ~/go").ok();
        assert_eq!(paused.join().expect("it is paused")["state"], "paused");
    });
    daemon.verb(&id, "resume");
    assert_eq!(daemon.exec_view(&id, &exec)["exit_code"], 0);
}

#[test]
fn a_destroy_does_not_wait_for_a_pause_that_does() {
    let daemon = daemon!();
    let id = daemon.create();
    daemon.begin(&id, &json!({ "argv": ["sleep", "1001"] }));
    let target = format!("/api/v1/sandboxes/{id}/pause");
    let body = json!({ "drain_secs": 600 });
    std::thread::scope(|scope| {
        let paused = scope.spawn(|| daemon.request("POST", &target, &body));
        daemon.destroy(&id);
        let (status, _) = paused.join().expect("an answer");
        assert!([404, 409].contains(&status), "{status}");
    });
    daemon.assert_no_leaks();
}

#[test]
fn a_paused_sandbox_outlives_the_daemon_and_can_be_stopped_and_destroyed() {
    let mut daemon = daemon!();
    let (id, other) = (daemon.create(), daemon.create());
    let process = daemon.sh(&id, RESTLESS).ok();
    daemon.sh(&other, RESTLESS).ok();
    daemon.verb(&id, "pause");
    daemon.verb(&other, "pause");
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    assert_stands_still(&daemon, &id);
    daemon.verb(&id, "resume");
    assert_eq!(daemon.sh(&id, &format!("cat /proc/{process}/comm")).ok(), "sh");
    daemon.verb(&id, "pause");
    assert_eq!(daemon.verb(&id, "stop")["state"], "stopped");
    assert_eq!(daemon.verb(&id, "start")["state"], "running");
    assert_eq!(daemon.sh(&id, "echo fine").ok(), "fine");
    daemon.destroy(&other);
    daemon.destroy(&id);
    daemon.assert_no_leaks();
}

#[test]
fn a_sandbox_may_be_paused_at_its_timeout_and_has_it_again_after() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "on_timeout": "pause", "timeout_secs": 1 }));
    let paused = || daemon.state(&id) == "paused";
    until("it is paused", Patience::Long, paused);
    let view = daemon.get(&id);
    assert_eq!(
        (&view["reason"], &view["on_timeout"]),
        (&json!("its timeout was over"), &json!("pause"))
    );
    daemon.verb(&id, "resume");
    until("it is paused again", Patience::Long, paused);
    let patch = json!({ "timeout_secs": null });
    daemon.expect(200, "PATCH", &format!("/api/v1/sandboxes/{id}"), &patch);
    daemon.verb(&id, "resume");
    assert_eq!(daemon.sh(&id, "echo fine").ok(), "fine");
}

#[test]
fn a_runtime_that_cannot_pause_says_so_before_anything_happens() {
    let daemon = Daemon::start_with(&Setup::default().env("SANDKEEP_ENABLE_MOCK", "true"));
    let id = daemon.create_with(&json!({ "runtime": "mock" }));
    let refused = pause(&daemon, &id, 400, &Value::Null);
    assert_eq!(refused["code"], "unsupported_by_runtime", "{refused:#}");
    assert_eq!(daemon.state(&id), "running");
    let spec = json!({ "runtime": "mock", "on_timeout": "pause" });
    let refused = daemon.expect(400, "POST", "/api/v1/sandboxes", &spec);
    assert!(refused["detail"].to_string().contains("on_timeout"), "{refused:#}");
}
