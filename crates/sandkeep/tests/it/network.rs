//! The network of sandboxes over a real daemon: servers are on loopback, named by the daemon's own list of hosts.

pub mod alone;
mod at_rest;
mod attacks;
mod builds;
mod changed_secrets;
mod clients;
mod java;
mod requests;
mod secrets;
pub mod upstream;

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, binary, obstacle, until, until_some};
use upstream::{Upstream, World};

/// The failpoints of a create.
fn killed_in_create() -> impl Iterator<Item = &'static str> {
    ["network.after_secrets", "network.after_certificate", "network.after_open"].into_iter()
}

/// The failpoints that are tried here.
pub fn killed_at() -> impl Iterator<Item = &'static str> {
    killed_in_create().chain(["network.after_values"])
}

#[test]
fn a_sandbox_reaches_what_its_policy_allows_and_nothing_else() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let daemon = world.daemon();
    let id = daemon.create_allowing(&[&server.entry("a.test")]);
    assert!(daemon.reaches(&id, &server.url("a.test")));
    assert!(!daemon.reaches(&id, &server.url("b.test")), "the same server by another name");
    assert!(!daemon.reaches(&id, &format!("http://127.0.0.2:{}/", server.port)));
    assert_eq!(server.requests().len(), 1);
    let said = daemon.sh(&id, &format!("wget -q -O - {}", server.url("a.test"))).ok();
    assert_eq!(said, "hello", "wget");
    let python = format!(
        "/usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen(\"{}\").read())'",
        server.url("a.test")
    );
    assert_eq!(daemon.sh(&id, &python).ok(), "b'hello\\n'");
    // A refusal can be read by whoever owns the sandbox.
    let denied: Vec<Value> = daemon
        .network_log(&id)
        .into_iter()
        .filter(|decision| decision["verdict"] == "denied")
        .collect();
    assert!(denied.iter().any(|decision| decision["name"] == "b.test"), "{denied:?}");
    let log = daemon.expect(200, "GET", &format!("/api/v1/sandboxes/{id}/log"), &Value::Null);
    assert!(log.to_string().contains("\"network_denied\""), "{log}");
    let network = daemon.network(&id);
    assert_eq!(network["gateway"], "open");
    assert_eq!(network["entries"][0]["ports"], json!([server.port]));
    assert!(network["usage"]["connections"].as_u64() >= Some(3), "{network}");
    let without = daemon.create();
    assert!(!daemon.reaches(&without, &server.url("a.test")));
    assert_eq!(daemon.network(&without)["gateway"], "closed");
}

#[test]
fn an_address_that_is_not_public_needs_the_operator() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::strict());
    let daemon = world.daemon();
    let id = daemon.create_allowing(&[&server.entry("a.test"), "127.0.0.0/8"]);
    assert!(!daemon.reaches(&id, &server.url("a.test")));
    assert!(server.requests().is_empty());
    let log = daemon.network_log(&id);
    let refused: Vec<&str> =
        log.iter().filter_map(|decision| decision["reason"].as_str()).collect();
    assert!(refused.iter().any(|why| why.contains("egress_allow_ranges")), "{log:?}");
}

#[test]
fn a_policy_is_changed_while_connections_are_open() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let daemon = world.daemon();
    let id = daemon.create_allowing(&[&server.entry("a.test")]);
    assert!(!daemon.reaches(&id, &server.url("b.test")));
    daemon.patch_network(&id, &json!({ "add_allow": [server.entry("b.test")] }));
    assert!(daemon.reaches(&id, &server.url("b.test")), "at once");
    let hold = format!("curl -sS --max-time 600 {}hold", server.url("a.test"));
    let held = daemon.begin(&id, &json!({ "command": hold }));
    until("the connection is open", Patience::Short, || {
        server.requests().iter().any(|head| head.starts_with("GET /hold"))
    });
    daemon.patch_network(&id, &json!({ "add_deny": ["a.test"] }));
    until("the open connection has ended", Patience::Short, || {
        daemon.exec_view(&id, &held)["status"] != "running"
    });
    assert!(!daemon.reaches(&id, &server.url("a.test")));
    assert!(daemon.reaches(&id, &server.url("b.test")), "others go on");
    daemon.patch_network(&id, &json!({ "policy": "none" }));
    assert!(!daemon.reaches(&id, &server.url("b.test")));
    assert_eq!(daemon.network(&id)["policy"], "none");
}

#[test]
fn the_next_daemon_opens_the_network_of_a_running_sandbox_again() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let mut daemon = world.daemon();
    let id = daemon.create_allowing(&[&server.entry("a.test")]);
    let paused = daemon.create_allowing(&[&server.entry("a.test")]);
    daemon.verb(&paused, "pause");
    daemon.patch_network(&id, &json!({ "add_deny": ["c.test"] }));
    let policy = daemon.network(&id)["policy"].clone();
    let tries = format!(
        "while ! curl -s --max-time 5 {} >/tmp/got; do sleep 0.1; done",
        server.url("a.test")
    );
    daemon.kill_9();
    daemon.start_again(&world.setup);
    assert_eq!(daemon.network(&id)["policy"], policy);
    daemon.sh(&id, &tries).ok();
    assert!(daemon.reaches(&id, &server.url("a.test")));
    assert!(!daemon.reaches(&id, &server.url("b.test")));
    assert!(!daemon.network_log(&id).is_empty(), "the log is that of both");
    daemon.verb(&paused, "resume");
    assert!(daemon.reaches(&paused, &server.url("a.test")));
}

#[test]
fn a_limit_of_bytes_counts_on_after_a_restart_of_the_daemon_and_of_the_sandbox() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let mut daemon = world.daemon();
    let limited = |bytes: u64| json!({ "network": { "allow": [server.entry("a.test")], "limits": { "bytes_total": bytes } } });
    let reaches = |daemon: &Daemon, id: &str| daemon.reaches(id, &server.url("a.test"));
    // How many bytes one request takes.
    let measured = daemon.create_with(&limited(1 << 20));
    assert!(reaches(&daemon, &measured));
    let one = until_some("the request is counted", Patience::Short, || {
        let usage = &daemon.network(&measured)["usage"];
        let bytes = usage["bytes_up"].as_u64()? + usage["bytes_down"].as_u64()?;
        (bytes > 0 && usage["open"] == 0).then_some(bytes)
    });
    let id = daemon.create_with(&limited(2 * one + one / 2));
    assert!(reaches(&daemon, &id), "the first");
    until("it is noted", Patience::Short, || {
        let log = daemon.network_log(&id);
        log.iter().any(|decision| decision["kind"] == "closed")
    });
    daemon.kill_9();
    daemon.start_again(&world.setup);
    assert!(reaches(&daemon, &id), "the second");
    daemon.verb(&id, "stop");
    daemon.verb(&id, "start");
    // The third goes over the limit, which may cut it.
    let _ = reaches(&daemon, &id);
    daemon.verb(&id, "stop");
    daemon.verb(&id, "start");
    assert!(!reaches(&daemon, &id), "three are over the limit");
}

#[test]
fn what_a_daemon_cannot_give_is_refused_before_anything_is_done() {
    skip_if!(obstacle());
    let world = World::new();
    let ceiling = r#"--egress-ceiling={"allow":["python","*.test"]}"#;
    let setup = world.setup.clone().argument(ceiling).argument("--enable-mock");
    let daemon = Daemon::start_with(&setup);
    let refuse = |status: u16, code: &str, words: &str, spec: Value| {
        let answer = daemon.expect(status, "POST", "/api/v1/sandboxes", &spec);
        assert_eq!(answer["code"], code, "{answer}");
        let detail = answer["detail"].as_str().expect("a detail");
        assert!(detail.contains(words), "{detail}");
    };
    let allow = |entry: &str| json!({ "network": { "allow": [entry] } });
    refuse(403, "network_over_ceiling", "other.example", allow("other.example"));
    refuse(403, "network_over_ceiling", "*", json!({ "network": "open" }));
    refuse(400, "invalid_field", "presets are", allow("pyton"));
    let mut mock = allow("a.test");
    mock["runtime"] = json!("mock");
    refuse(400, "unsupported_by_runtime", "mock", mock);
    let secret = json!({ "TOKEN": { "hosts": ["a.test"], "value": "hush" } });
    refuse(400, "invalid_field", "network.allow", json!({ "secrets": secret }));
    let uncovered = json!({ "secrets": secret, "network": { "allow": ["b.test"] } });
    refuse(400, "invalid_field", "does not allow a.test", uncovered);
    let both = json!({
        "secrets": secret, "network": { "allow": ["a.test"] }, "env": { "TOKEN": "x" }
    });
    refuse(400, "invalid_field", "in env as well", both);
    assert!(daemon.ids().is_empty());
    let id = daemon.create_allowing(&["a.test"]);
    let target = format!("/api/v1/sandboxes/{id}/network");
    let wide = json!({ "add_allow": ["other.example"] });
    assert_eq!(daemon.expect(403, "PATCH", &target, &wide)["code"], "network_over_ceiling");
    let rules = json!({ "add_allow": [{ "host": "a.test", "access": "read-only" }] });
    let refused = daemon.expect(400, "PATCH", &target, &rules);
    assert!(refused["detail"].as_str().is_some_and(|text| text.contains("start it again")));
    let none = daemon.create();
    let target = format!("/api/v1/sandboxes/{none}/network");
    daemon.expect(400, "PATCH", &target, &json!({ "allow": ["a.test"] }));
    daemon.verb(&none, "stop");
    daemon.expect(200, "PATCH", &target, &json!({ "allow": ["a.test"] }));
    daemon.verb(&none, "start");
    assert_eq!(daemon.network(&none)["gateway"], "open");
}

#[test]
fn a_profile_carries_a_policy_and_presets_are_the_operators() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let dir = tempfile::tempdir().expect("a directory");
    let (presets, config) = (dir.path().join("presets"), dir.path().join("sandkeep.toml"));
    let own = json!({ "corp": [server.entry("a.test")] });
    std::fs::write(&presets, own.to_string()).expect("a file");
    std::fs::write(&config, "[profiles.work]\nnetwork = 'corp'\n").expect("a file");
    let setup = world
        .setup
        .clone()
        .argument(&format!("--egress-presets={}", presets.display()))
        .argument(&format!("--config={}", config.display()));
    let daemon = Daemon::start_with(&setup);
    let id = daemon.create_with(&json!({ "profile": "work" }));
    assert!(daemon.reaches(&id, &server.url("a.test")));
    assert_eq!(daemon.network(&id)["entries"][0]["preset"], "corp");
    let own = daemon.create_with(&json!({ "profile": "work", "network": "none" }));
    assert!(!daemon.reaches(&own, &server.url("a.test")), "what the request says wins");
    let presets = daemon.expect(200, "GET", "/api/v1/network/presets", &Value::Null);
    assert!(presets["presets"]["corp"].is_array() && presets["presets"]["python"].is_array());
}

/// A configuration with the hosts of the tests, for a command without a daemon.
fn configured() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let (hosts, config) = (dir.path().join("hosts"), dir.path().join("sandkeep.toml"));
    std::fs::write(&hosts, upstream::HOSTS).expect("a file");
    let text =
        format!("egress_hosts = '{}'\negress_allow_ranges = ['127.0.0.0/8']\n", hosts.display());
    std::fs::write(&config, text).expect("a file");
    (dir, config)
}

#[test]
fn run_needs_one_option_and_no_daemon() {
    skip_if!(obstacle());
    let server = Upstream::http();
    let (_dir, config) = configured();
    let run = |options: &[&str], command: &[&str]| {
        let mut run = binary();
        run.arg("run").arg("--config").arg(&config).args(options).arg("--").args(command);
        run.stdin(Stdio::null()).output().expect("the binary runs")
    };
    let (entry, url) = (server.entry("a.test"), server.url("a.test"));
    let ran = run(&["--allow", &entry], &["curl", "-sS", "--max-time", "20", &url]);
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "hello\n", "{error}");
    let without = run(&[], &["curl", "-sS", "--max-time", "20", &url]);
    assert!(!without.status.success() && without.stdout.is_empty());
    let valued = run(&["--secret", "TOKEN=hush@a.test"], &["true"]);
    let said = String::from_utf8_lossy(&valued.stderr).into_owned();
    assert!(said.contains("export TOKEN=") && !said.contains("hush@"), "{said}");
    let unset = run(&["--secret", "NO_SUCH_TOKEN@a.test"], &["true"]);
    assert!(String::from_utf8_lossy(&unset.stderr).contains("export it first"));
}

/// Runs a command line in a terminal of its own, and answers its question. Returns the question, and all that it printed.
pub fn answer_in_terminal(command: &str, answer: &str) -> (String, String) {
    // It gives its child a terminal, and passes on what is typed.
    let mut script = Command::new("script")
        .args(["-qec", command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script runs");
    let mut typed = script.stdin.take().expect("it is piped");
    let mut shown = script.stdout.take().expect("it is piped");
    let mut said = Vec::new();
    let mut byte = [0];
    while !said.ends_with(b"[n]o: ") && shown.read(&mut byte).expect("output") > 0 {
        said.push(byte[0]);
    }
    let question = String::from_utf8_lossy(&said).into_owned();
    typed.write_all(format!("{answer}\n").as_bytes()).expect("it reads");
    shown.read_to_end(&mut said).expect("output");
    script.wait().expect("our child");
    (question, String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn run_asks_in_its_terminal() {
    skip_if!(obstacle());
    let server = Upstream::http();
    let (_dir, config) = configured();
    let command = format!(
        "{} run --config {} --ask -- curl -sS --max-time 60 {}",
        env!("CARGO_BIN_EXE_sandkeep"),
        config.display(),
        server.url("a.test")
    );
    let (question, said) = answer_in_terminal(&command, "once");
    assert!(question.contains(&format!("allow a.test:{}?", server.port)), "{question}");
    assert!(said.contains("hello"), "{said}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn destroy_and_a_killed_create_leave_nothing() {
    skip_if!(obstacle());
    let world = World::new();
    let spec = json!({
        "network": { "allow": ["a.test"] },
        "secrets": { "TOKEN": { "hosts": ["a.test"], "value": "hush" } },
    });
    for point in killed_in_create() {
        let armed: Setup = world.setup.clone().env("SANDKEEP_FAILPOINT", point);
        let mut daemon = Daemon::start_with(&armed);
        let answer = daemon.try_request("POST", "/api/v1/sandboxes", &spec);
        assert!(answer.is_err(), "{point} was not passed: {answer:?}");
        daemon.wait_for_end();
        daemon.start_again(&world.setup);
        assert!(daemon.ids().is_empty(), "{point}");
        let id = daemon.create_with(&spec);
        daemon.destroy(&id);
        daemon.assert_no_leaks();
    }
}
