//! `on_deny: ask` and `audit`.

use serde_json::{Value, json};

use super::answer_in_terminal;
use super::upstream::{Upstream, World};
use crate::skip_if;
use crate::support::{Daemon, Patience, Ran, binary, obstacle, until_some};

fn pending(daemon: &Daemon, id: &str) -> Value {
    let target = format!("/api/v1/sandboxes/{id}/network/requests");
    until_some("a request waits", Patience::Short, || {
        let items = daemon.expect(200, "GET", &target, &Value::Null)["items"].clone();
        items.as_array().and_then(|items| items.first().cloned())
    })
}

fn decide(daemon: &Daemon, id: &str, request: &Value, choice: &str) {
    let target = format!("/api/v1/sandboxes/{id}/network/requests/{}", request["id"]);
    daemon.expect(204, "POST", &target, &json!({ "choice": choice }));
}

#[test]
fn a_connection_waits_for_the_owner() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let daemon = world.daemon();
    let id = daemon.create_with(&json!({ "network": { "allow": [], "on_deny": "ask" } }));
    let url = server.url("a.test");
    let begin = || {
        let curl = format!("curl -sS --max-time 60 {url}");
        daemon.begin(&id, &json!({ "command": curl }))
    };
    let ended = |exec: &str| {
        until_some("it has ended", Patience::Short, || {
            let view = daemon.exec_view(&id, exec);
            view["exit_code"].as_i64()
        })
    };
    let once = begin();
    let request = pending(&daemon, &id);
    assert_eq!((&request["host"], &request["port"]), (&json!("a.test"), &json!(server.port)));
    decide(&daemon, &id, &request, "once");
    assert_eq!(ended(&once), 0);
    let always = begin();
    decide(&daemon, &id, &pending(&daemon, &id), "always");
    assert_eq!(ended(&always), 0);
    let policy = daemon.network(&id)["policy"].clone();
    assert_eq!(policy["allow"], json!([server.entry("a.test")]), "{policy}");
    assert!(daemon.reaches(&id, &url), "without a question");
    let refused = daemon.begin(
        &id,
        &json!({ "command": format!("curl -sS --max-time 60 {}", server.url("b.test")) }),
    );
    let request = pending(&daemon, &id);
    decide(&daemon, &id, &request, "refuse");
    assert_ne!(ended(&refused), 0);
    let again = format!("/api/v1/sandboxes/{id}/network/requests/{}", request["id"]);
    let gone = daemon.expect(404, "POST", &again, &json!({ "choice": "once" }));
    assert_eq!(gone["code"], "network_request_not_found");
    let events = daemon.expect(
        200,
        "GET",
        &format!("/api/v1/events?kind=network.requested,network.decided&sandbox={id}"),
        &Value::Null,
    );
    let kinds: Vec<&str> = events["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|event| event["kind"].as_str())
        .collect();
    let count = |kind: &str| kinds.iter().filter(|found| **found == kind).count();
    assert_eq!((count("network.requested"), count("network.decided")), (3, 3), "{kinds:?}");
}

#[test]
fn an_agent_asks_with_a_reason_and_decides_nothing_itself() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let daemon = world.daemon();
    let id = daemon.create_with(&json!({ "network": { "allow": [], "on_deny": "ask" } }));
    let target = format!("/api/v1/sandboxes/{id}/network/requests");
    let asked = json!({ "host": "a.test", "port": server.port, "reason": "to say hello" });
    let request = daemon.expect(200, "POST", &target, &asked);
    assert_eq!(request["why"], "to say hello");
    // The daemon's address inside is the sandbox's own loopback, or needs an entry like any other.
    let address = daemon.address();
    let approve = format!(
        "curl -s --max-time 20 -X POST -H 'content-type: application/json' -d '{{\"choice\":\"always\"}}' http://{address}{target}/{}",
        request["id"]
    );
    assert_ne!(daemon.sh(&id, &approve).exit_code, Some(0));
    assert_eq!(pending(&daemon, &id)["id"], request["id"], "it still waits");
    decide(&daemon, &id, &request, "always");
    assert!(daemon.reaches(&id, &server.url("a.test")));
    let refuses = daemon.create_allowing(&["a.test"]);
    let target = format!("/api/v1/sandboxes/{refuses}/network/requests");
    let answer = daemon.expect(409, "POST", &target, &asked);
    assert_eq!(answer["code"], "network_not_asked", "{answer}");
}

#[test]
fn an_audit_passes_nothing_private_and_suggests_what_was_used() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let daemon = world.daemon();
    let used = server.entry("a.test");
    let spec = json!({ "network": { "allow": ["*.test", &used], "on_deny": "audit" } });
    let id = daemon.create_with(&spec);
    assert!(daemon.reaches(&id, &server.url("a.test")));
    assert!(!daemon.reaches(&id, &server.url("b.test")), "only public addresses pass unasked");
    let target = format!("/api/v1/sandboxes/{id}/network/suggest");
    let policy = daemon.expect(200, "GET", &target, &Value::Null);
    let suggested = policy["allow"].as_array().expect("entries");
    assert!(suggested.contains(&json!(used)), "{policy}");
    assert!(!suggested.contains(&json!("*.test")), "narrower than what was allowed: {policy}");
    let kept = daemon.create_with(&json!({ "network": policy }));
    assert!(daemon.reaches(&kept, &server.url("a.test")));
}

#[test]
fn run_asks_in_its_terminal_about_a_sandbox_of_a_daemon() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let daemon = world.daemon();
    let run = |host: &str| {
        format!(
            "{} --url {} run --ask -- curl -sS --max-time 60 {}",
            env!("CARGO_BIN_EXE_sandkeep"),
            daemon.url(),
            server.url(host)
        )
    };
    let (question, said) = answer_in_terminal(&run("a.test"), "once");
    assert!(question.contains(&format!("allow a.test:{}?", server.port)), "{question}");
    assert!(said.contains("hello"), "{said}");
    let (question, said) = answer_in_terminal(&run("b.test"), "no");
    assert!(question.contains("allow b.test"), "{question}");
    assert!(!said.contains("hello"), "{said}");
    assert_eq!(server.requests().len(), 1);
    assert!(daemon.ids().is_empty(), "a sandbox is left");
}

#[test]
fn the_command_line_lists_approves_and_refuses_what_waits() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let daemon = world.daemon();
    let id = daemon.create_with(&json!({ "network": { "allow": [], "on_deny": "ask" } }));
    let network = |arguments: &[&str]| -> Ran {
        let mut command = binary();
        command.arg("network").args(arguments).env("SANDKEEP_URL", daemon.url());
        command.output().expect("the binary runs").into()
    };
    let begin = |host: &str| {
        let curl = format!("curl -sS --max-time 60 {}", server.url(host));
        let exec = daemon.begin(&id, &json!({ "command": curl }));
        let listed = until_some("a request is listed", Patience::Short, || {
            let listed = network(&["requests", &id]);
            assert_eq!(listed.code, 0, "{listed:?}");
            listed.stdout.contains(&server.entry(host)).then_some(listed.stdout)
        });
        let line = listed.lines().find(|line| line.contains(host)).expect("its line");
        (exec, line.split_whitespace().next().expect("a number").to_owned())
    };
    let ended = |exec: &str| {
        until_some("it has ended", Patience::Short, || {
            daemon.exec_view(&id, exec)["exit_code"].as_i64()
        })
    };
    let (exec, request) = begin("a.test");
    let approved = network(&["approve", &id, &request]);
    assert_eq!((approved.code, ended(&exec)), (0, 0), "{approved:?}");
    let gone = network(&["approve", &id, &request]);
    assert!(gone.code != 0 && gone.stderr.contains("request"), "{gone:?}");
    let (exec, request) = begin("a.test");
    assert_eq!((network(&["approve", &id, &request, "--always"]).code, ended(&exec)), (0, 0));
    assert!(daemon.reaches(&id, &server.url("a.test")), "without a question");
    let (exec, request) = begin("b.test");
    assert_eq!(network(&["deny", &id, &request]).code, 0);
    assert_ne!(ended(&exec), 0);
    assert_eq!(server.requests().len(), 3);
}
