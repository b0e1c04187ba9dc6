//! Slots and ensure, on real sandboxes: a name refers to one sandbox, and that one is healthy.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, Setup, processes_in_cgroup, until};

const SANDBOXES: &str = "/api/v1/sandboxes";
const ENSURE: &str = "/api/v1/sandboxes/ensure";

fn ensure(daemon: &Daemon, slot: &str) -> (String, bool) {
    let answer = daemon.expect(200, "POST", ENSURE, &json!({ "slot": slot }));
    let id = answer["sandbox"]["id"].as_str().expect("an id").to_owned();
    (id, answer["created"].as_bool().expect("whether it is new"))
}

#[test]
fn a_slot_has_one_sandbox_and_names_it_to_the_next_who_asks() {
    let mut daemon = daemon!();
    let body = json!({ "slot": "agent-run.1" });
    let id = daemon.create_with(&body);
    assert_eq!(daemon.get(&id)["slot"], "agent-run.1");
    let problem = daemon.expect(409, "POST", SANDBOXES, &body);
    assert_eq!(problem["code"], "slot_taken");
    assert!(problem["detail"].as_str().expect("a detail").contains(&id), "{problem}");
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    daemon.expect(409, "POST", SANDBOXES, &body);
    daemon.destroy(&id);
    daemon.create_with(&body);
    for wrong in ["", "..", "a..b", "-a", "a/b", &"a".repeat(129)] {
        let problem = daemon.expect(400, "POST", SANDBOXES, &json!({ "slot": wrong }));
        assert!(problem["detail"].as_str().expect("a detail").starts_with("slot"), "{problem}");
    }
}

#[test]
fn a_hundred_callers_ensure_one_sandbox() {
    let daemon = daemon!();
    let answers: Vec<(String, bool)> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..100).map(|_| scope.spawn(|| ensure(&daemon, "shared"))).collect();
        callers.into_iter().map(|caller| caller.join().expect("an answer")).collect()
    });
    assert_eq!(answers.iter().filter(|(_, created)| *created).count(), 1);
    assert_eq!(daemon.ids(), [answers[0].0.as_str()]);
    assert!(answers.iter().all(|(id, _)| *id == answers[0].0));
}

#[test]
fn ensure_keeps_what_answers_starts_what_is_stopped_and_replaces_what_does_not_answer() {
    let daemon = daemon!();
    let (first, created) = ensure(&daemon, "shared");
    assert!(created);
    daemon.sh(&first, "echo kept > ~/note").ok();
    assert_eq!(ensure(&daemon, "shared"), (first.clone(), false));
    daemon.verb(&first, "stop");
    assert_eq!(ensure(&daemon, "shared"), (first.clone(), false));
    assert_eq!(daemon.sh(&first, "cat ~/note").ok(), "kept");

    // A process that is there and says nothing is not well.
    let guest = processes_in_cgroup(&first);
    assert!(!guest.is_empty(), "its guest runs");
    for pid in guest {
        let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not zero");
        kill_process(pid, Signal::STOP).expect("it runs");
    }
    let (second, created) = ensure(&daemon, "shared");
    assert!(created && second != first);
    assert_eq!(daemon.ids(), [second.as_str()]);
    daemon.assert_no_leaks();

    let guest = processes_in_cgroup(&second);
    for pid in guest {
        let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not zero");
        kill_process(pid, Signal::KILL).expect("it runs");
    }
    until("its death is noticed", Patience::Short, || daemon.state(&second) == "failed");
    let (third, created) = ensure(&daemon, "shared");
    assert!(created && third != second);
    assert_eq!(daemon.sh(&third, "echo well").ok(), "well");
}

#[test]
fn ensure_without_a_slot_says_what_is_missing() {
    let daemon = daemon!();
    let problem = daemon.expect(400, "POST", ENSURE, &json!({}));
    assert!(problem["detail"].as_str().expect("a detail").starts_with("slot"), "{problem}");
    let (status, _) = daemon.request("GET", ENSURE, &Value::Null);
    assert_eq!(status, 405, "it is a verb, not the name of a sandbox");
}
