//! A create that is repeated under its key is executed once, whatever happens to the daemon.

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Setup};

fn create(daemon: &Daemon, key: &str, body: &Value) -> (u16, Value) {
    daemon
        .request_with(&[("Idempotency-Key", key)], "POST", "/api/v1/sandboxes", body)
        .expect("an answer")
}

fn created(daemon: &Daemon, key: &str, body: &Value) -> String {
    let (status, view) = create(daemon, key, body);
    assert_eq!(status, 201, "{view}");
    view["id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_repeated_create_is_answered_with_the_same_sandbox_also_after_kill_9() {
    let mut daemon = daemon!();
    let body = json!({ "labels": { "n": "1" } });
    let first = created(&daemon, "k-1", &body);
    assert_eq!(created(&daemon, "k-1", &json!({ "labels": { "n": "1" } })), first);
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    assert_eq!(created(&daemon, "k-1", &body), first);
    assert_ne!(created(&daemon, "k-2", &body), first);
    let (status, problem) = create(&daemon, "k-1", &json!({ "labels": { "n": "2" } }));
    assert_eq!((status, &problem["code"]), (422, &json!("idempotency_mismatch")));
    daemon.destroy(&first);
    let (status, problem) = create(&daemon, "k-1", &body);
    assert_eq!((status, &problem["code"]), (409, &json!("idempotency_gone")));
}

#[test]
fn many_at_once_under_one_key_make_one_sandbox() {
    let daemon = daemon!();
    let ids: Vec<String> = std::thread::scope(|scope| {
        let one = || created(&daemon, "same", &json!({}));
        let callers: Vec<_> = (0..20).map(|_| scope.spawn(one)).collect();
        callers.into_iter().map(|caller| caller.join().expect("an answer")).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(daemon.ids(), [ids[0].as_str()]);
}

#[test]
fn an_error_is_not_kept_and_a_key_must_be_one() {
    let daemon = daemon!();
    let (status, _) = create(&daemon, "k", &json!({ "runtime": "nonsense" }));
    assert_eq!(status, 400);
    created(&daemon, "k", &json!({}));
    for wrong in ["", "two words", &"k".repeat(256)] {
        let (status, problem) = create(&daemon, wrong, &json!({}));
        assert_eq!(status, 400, "{problem}");
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.starts_with("Idempotency-Key"), "{detail}");
    }
    assert_eq!(daemon.ids().len(), 1);
}

#[test]
fn where_a_key_would_have_no_effect_it_is_refused() {
    let daemon = daemon!();
    let id = created(&daemon, "k", &json!({}));
    for (what, body) in [
        ("execs", json!({ "command": "echo ran >> ~/ran" })),
        ("processes", json!({ "command": "echo ran >> ~/ran" })),
        ("turns", Value::Null),
        ("race", json!({ "count": 2, "command": "true", "judge": "echo 1" })),
    ] {
        let target = format!("/api/v1/sandboxes/{id}/{what}");
        let headers = [("Idempotency-Key", "k")];
        let (status, problem) =
            daemon.request_with(&headers, "POST", &target, &body).expect("an answer");
        assert_eq!((status, &problem["code"]), (400, &json!("invalid_field")), "{what}: {problem}");
        assert!(problem["detail"].to_string().contains("Idempotency-Key"), "{problem}");
    }
    assert_eq!(daemon.sh(&id, "ls ~").ok(), "", "nothing ran");
    assert_eq!(daemon.get(&id)["turn_count"], 0);
}
