//! Create, get, stop, start, destroy.

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, Setup, obstacle, until};

const SANDBOXES: &str = "/api/v1/sandboxes";

#[test]
fn a_created_sandbox_is_running_and_described() {
    let daemon = daemon!();
    let spec = json!({ "labels": { "task": "42" }, "env": { "SECRET": "s3cr3t" } });
    let view = daemon.expect(201, "POST", SANDBOXES, &spec);
    let id = view["id"].as_str().expect("an id");
    assert!(id.starts_with("sb") && id.len() == 28, "{id}");
    assert_eq!(view["state"], "running");
    assert_eq!(view["runtime"], "native");
    assert_eq!(view["template"], "host");
    assert_eq!(view["labels"]["task"], "42");
    assert_eq!(view["owner"]["organization"], "local");
    assert!(!view.to_string().contains("s3cr3t"), "env values are write-only: {view}");
    let mut shown = daemon.get(id);
    // How much it holds is measured only when somebody looks.
    for space in ["space_used_bytes", "space_used"] {
        assert!(shown[space].take().is_u64() && view[space].is_null(), "{shown}");
    }
    assert_eq!(shown, view);
    assert_eq!(daemon.ids(), [id]);
}

#[test]
fn files_outlive_stop_and_start_but_not_destroy() {
    let daemon = daemon!();
    let id = daemon.create();
    daemon.sh(&id, "echo kept > ~/note; sleep 1000 >/dev/null 2>&1 &").ok();
    let stopped = daemon.verb(&id, "stop");
    assert_eq!(stopped["state"], "stopped");
    daemon.assert_no_leaks();

    let started = daemon.verb(&id, "start");
    assert_eq!(started["state"], "running");
    assert_eq!(daemon.sh(&id, "cat ~/note").ok(), "kept");
    assert_eq!(daemon.sh(&id, "ps -e -o comm= | grep -c '^sleep$'").stdout_text().trim(), "0");

    daemon.destroy(&id);
    let target = format!("{SANDBOXES}/{id}");
    let problem = daemon.expect(404, "GET", &target, &Value::Null);
    assert_eq!(problem["status"], 404);
    assert!(problem["code"].is_string() && problem["remediation"].is_string(), "{problem}");
    let exec = json!({ "command": "true" });
    daemon.expect(404, "POST", &format!("{target}/execs"), &exec);
    assert_eq!(daemon.ids(), [""; 0]);
}

#[test]
fn verbs_that_are_not_legal_say_which_is() {
    let daemon = daemon!();
    let id = daemon.create();
    daemon.verb(&id, "stop");
    let target = format!("{SANDBOXES}/{id}/execs");
    let problem = daemon.expect(409, "POST", &target, &json!({ "command": "true" }));
    let remedy = problem["remediation"].as_str().expect("a remedy");
    assert!(remedy.contains("start"), "{problem}");
    // Asking for what is already so is no mistake.
    assert_eq!(daemon.verb(&id, "stop")["state"], "stopped");
}

#[test]
fn a_sandbox_that_cannot_be_made_leaves_nothing() {
    let daemon = daemon!();
    for (spec, word) in [
        (json!({ "runtime": "nonsense" }), "native"),
        (json!({ "template": "nonsense" }), "host"),
        (json!({ "resources": { "memory_mb": 0 } }), "memory_mb"),
        (json!({ "resources": { "cpus": -1 } }), "cpus"),
        (json!({ "labels": { "": "" }, "lables": {} }), "lables"),
    ] {
        let problem = daemon.expect(400, "POST", SANDBOXES, &spec);
        assert!(problem.to_string().contains(word), "{spec} does not lead to {word}: {problem}");
    }
    assert_eq!(daemon.ids(), [""; 0]);
    daemon.assert_no_leaks();
}

#[test]
fn sandboxes_survive_a_graceful_restart() {
    let mut daemon = daemon!();
    let (running, stopped) = (daemon.create(), daemon.create());
    daemon.sh(&running, "echo here > /tmp/note").ok();
    daemon.verb(&stopped, "stop");
    assert!(daemon.stop().success());
    daemon.start_again(&Default::default());
    assert_eq!(daemon.sh(&running, "cat /tmp/note").ok(), "here");
    assert_eq!(daemon.state(&stopped), "stopped");
    assert_eq!(daemon.verb(&stopped, "start")["state"], "running");
}

#[test]
fn destroying_twice_is_not_found_and_not_a_failure() {
    let daemon = daemon!();
    let id = daemon.create();
    daemon.destroy(&id);
    let (status, _) = daemon.request("DELETE", &format!("{SANDBOXES}/{id}"), &Value::Null);
    assert_eq!(status, 404);
    for not_an_id in ["nonsense", "..%2f..%2fetc", "sbAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
        daemon.expect(404, "GET", &format!("{SANDBOXES}/{not_an_id}"), &Value::Null);
    }
}

#[test]
fn a_destroy_breaks_off_the_copy_of_a_snapshot() {
    crate::skip_if!(obstacle());
    let setup = Setup::default().argument("--storage").argument("local");
    let daemon = Daemon::start_with(&setup);
    let id = daemon.create();
    // Enough that a copy takes much longer than the request that breaks it off.
    daemon.sh(&id, "mkdir many && cd many && seq 1 60000 | xargs -n 500 touch").ok();
    let drafts = daemon.data_dir().join("storage/local/.drafts");
    let count = || std::fs::read_dir(&drafts).expect("it is there").count();
    let path = format!("{SANDBOXES}/{id}/snapshots");
    std::thread::scope(|scope| {
        let snapshot = scope.spawn(|| daemon.request("POST", &path, &json!({ "name": "one" })));
        until("the copy has begun", Patience::Long, || count() > 0);
        daemon.destroy(&id);
        let (status, answer) = snapshot.join().expect("no panic");
        assert!(status >= 400, "it was broken off: {answer}");
    });
    assert_eq!(count(), 0, "a draft is left");
    daemon.assert_no_leaks();
}
