//! Processes: they keep running, report when they are ready, and their outcome is known as long as their sandbox
//! exists.

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, Raw, Setup, file_server, until, until_some};

fn path(id: &str, rest: &str) -> String {
    format!("/api/v1/sandboxes/{id}/processes{rest}")
}

fn start(daemon: &Daemon, id: &str, body: &Value) -> Value {
    daemon.expect(201, "POST", &path(id, ""), body)
}

fn look(daemon: &Daemon, id: &str, process: &Value) -> Value {
    let name = process["id"].as_str().expect("an id");
    daemon.expect(200, "GET", &path(id, &format!("/{name}")), &Value::Null)
}

fn ended(daemon: &Daemon, id: &str, process: &Value) -> Value {
    until_some("the process has ended", Patience::Long, || {
        Some(look(daemon, id, process)).filter(|seen| seen["status"] == "exited")
    })
}

/// All that a process said on one stream.
fn logs(daemon: &Daemon, id: &str, process: &Value, query: &str) -> (u16, String) {
    let name = process["id"].as_str().expect("an id");
    let target = path(id, &format!("/{name}/logs?{query}"));
    let mut raw = Raw::open(daemon.address());
    let head = format!(
        "GET {target} HTTP/1.1\r\nHost: {}\r\nAccept: application/octet-stream\r\n\r\n",
        daemon.address()
    );
    let reply = raw.send(head.as_bytes()).reply("GET");
    (reply.status, reply.text())
}

#[test]
fn a_server_is_running_when_its_start_is_answered_and_can_be_reached() {
    let daemon = daemon!();
    let id = daemon.create();
    let process = start(&daemon, &id, &file_server(8000));
    assert_eq!(process["status"], "running", "{process:#}");
    assert_eq!(process["port"], 8000);
    let port = daemon.address().port();
    assert_eq!(process["url"], format!("http://8000-{id}.localhost:{port}/"));
    let address = process["address"].as_str().expect("an address").parse().expect("host:port");
    let reply = Raw::open(address).send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").reply("GET");
    assert_eq!(reply.status, 200);
    // It answered twice: the question whether it is ready, and ours.
    until("its log tells of the requests", Patience::Short, || {
        logs(&daemon, &id, &process, "stream=stderr").1.matches("GET / HTTP/1.1").count() >= 2
    });
    // Now it has nothing more to say.
    let listed = daemon.expect(200, "GET", &path(&id, ""), &Value::Null);
    assert_eq!(listed["items"], json!([look(&daemon, &id, &process)]));

    let name = process["id"].as_str().expect("an id");
    daemon.expect(204, "DELETE", &path(&id, &format!("/{name}")), &Value::Null);
    let over = look(&daemon, &id, &process);
    assert_eq!((&over["status"], &over["outcome"]), (&json!("exited"), &json!("signaled")));
    assert_eq!(over["signal"], 15);
    assert!(over.get("url").is_none() && over["exited_at"].is_string(), "{over:#}");
    daemon.expect(204, "DELETE", &path(&id, &format!("/{name}")), &Value::Null);
    let refused = daemon.expect(409, "POST", &path(&id, &format!("/{name}/signal")), &Value::Null);
    assert_eq!(refused["code"], "process_ended");
}

#[test]
fn a_process_that_ends_before_it_is_ready_says_how_and_why() {
    let daemon = daemon!();
    let id = daemon.create();
    let body = json!({
        "command": "echo setting up; echo no config >&2; exit 7",
        "port": 8000,
        "ready": { "tcp": true },
    });
    let process = start(&daemon, &id, &body);
    assert_eq!((&process["status"], &process["exit_code"]), (&json!("exited"), &json!(7)));
    let said = process["last_output"].as_str().expect("output");
    assert!(said.contains("setting up\n") && said.contains("no config\n"), "{said:?}");
    let missing = start(&daemon, &id, &json!({ "argv": ["no-such-program"] }));
    let over = ended(&daemon, &id, &missing);
    assert_eq!(over["exit_code"], 127);
    assert!(over["error"].is_string(), "{over:#}");
}

#[test]
fn a_process_that_is_not_ready_in_time_goes_on_starting() {
    let daemon = daemon!();
    let id = daemon.create();
    let body = json!({
        "command": "until [ -e go ]; do read x < wait; done; exec python3 -m http.server 8000",
        "port": 8000,
        "ready": { "tcp": true, "timeout_secs": 1 },
    });
    daemon.sh(&id, "mkfifo wait").ok();
    let process = start(&daemon, &id, &body);
    assert_eq!(process["status"], "starting", "{process:#}");
    daemon.sh(&id, "touch go; echo > wait").ok();
    until("it is running", Patience::Long, || look(&daemon, &id, &process)["status"] == "running");
    let plain = start(&daemon, &id, &json!({ "argv": ["sleep", "1000"] }));
    assert_eq!(plain["status"], "running", "nothing is asked of it");
    assert!(plain.get("url").is_none() && plain.get("address").is_none(), "{plain:#}");
}

#[test]
fn a_process_survives_the_daemon_and_its_end_is_not_forgotten() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let serving = start(&daemon, &id, &file_server(8000));
    let counting =
        "i=0; while read line; do i=$((i+1)); echo $line; done < lines; echo bye >&2; exit 3";
    daemon.sh(&id, "mkfifo lines").ok();
    let counter = start(&daemon, &id, &json!({ "command": counting }));
    let quick = start(&daemon, &id, &json!({ "command": "echo quick; exit 5" }));
    ended(&daemon, &id, &quick);
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    until("the server is known to run", Patience::Long, || {
        look(&daemon, &id, &serving)["status"] == "running"
    });
    until("its raw address leads to it again", Patience::Short, || {
        look(&daemon, &id, &serving)["address"] == serving["address"]
    });
    assert_eq!(look(&daemon, &id, &quick)["exit_code"], 5);
    daemon.sh(&id, "seq 1 1000 > lines").ok();
    let over = ended(&daemon, &id, &counter);
    assert_eq!((&over["exit_code"], &over["started_at"]), (&json!(3), &counter["started_at"]));
    let expected: String = (1..=1000).map(|i| format!("{i}\n")).collect();
    assert_eq!(logs(&daemon, &id, &counter, "stream=stdout&follow=true").1, expected);
    let tail = logs(&daemon, &id, &counter, "stream=stdout&offset=3889").1;
    assert_eq!(tail, expected[3889..]);

    daemon.verb(&id, "stop");
    assert_eq!(ended(&daemon, &id, &serving)["status"], "exited");
    daemon.verb(&id, "start");
    assert_eq!(look(&daemon, &id, &serving)["status"], "exited", "a start brings nothing back");
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_with_its_whole_tree() {
    let daemon = daemon!();
    let id = daemon.create();
    let stubborn = "trap '' TERM; setsid sleep 4242 & echo ready; while :; do wait; done";
    let process = start(&daemon, &id, &json!({ "command": stubborn }));
    until("it has begun", Patience::Short, || {
        logs(&daemon, &id, &process, "stream=stdout").1 == "ready\n"
    });
    let name = process["id"].as_str().expect("an id");
    daemon.expect(204, "POST", &path(&id, &format!("/{name}/signal")), &Value::Null);
    daemon.expect(204, "DELETE", &path(&id, &format!("/{name}")), &Value::Null);
    assert_eq!(ended(&daemon, &id, &process)["outcome"], "canceled");
    assert_eq!(daemon.sh(&id, SLEEPERS).ok(), "0", "something of its tree is left");
}

/// A server that obeys SIGTERM and whose workers do not.
const SERVER: &str = "trap 'echo bye; exit 3' TERM; \
                      (trap '' TERM; setsid sleep 4242 & sleep 4242 & wait) & \
                      while :; do wait; done";

const SLEEPERS: &str = "cat /proc/[0-9]*/comm 2>/dev/null | grep -x sleep | wc -l";

#[test]
fn the_children_of_an_obedient_server_that_ignore_sigterm_are_killed_with_it() {
    let daemon = daemon!();
    let id = daemon.create();
    let process = start(&daemon, &id, &json!({ "command": SERVER }));
    until("its workers are there", Patience::Short, || daemon.sh(&id, SLEEPERS).ok() == "2");
    let name = process["id"].as_str().expect("an id");
    daemon.expect(204, "DELETE", &path(&id, &format!("/{name}")), &Value::Null);
    let over = look(&daemon, &id, &process);
    assert_eq!((&over["outcome"], &over["exit_code"]), (&json!("exited"), &json!(3)), "{over:#}");
    assert_eq!(daemon.sh(&id, SLEEPERS).ok(), "0", "something of its tree is left");
}

#[test]
fn a_process_that_is_being_ended_is_ended_also_if_the_daemon_dies_meanwhile() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let process = start(&daemon, &id, &json!({ "command": SERVER }));
    until("its workers are there", Patience::Short, || daemon.sh(&id, SLEEPERS).ok() == "2");
    let name = process["id"].as_str().expect("an id");
    let target = path(&id, &format!("/{name}"));
    let head = format!("DELETE {target} HTTP/1.1\r\nHost: {}\r\n\r\n", daemon.address());
    let mut raw = Raw::open(daemon.address());
    raw.send(head.as_bytes());
    until("it has been asked to end", Patience::Short, || {
        logs(&daemon, &id, &process, "stream=stdout").1.ends_with("bye\n")
    });
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    assert_eq!(ended(&daemon, &id, &process)["exit_code"], 3);
    assert_eq!(daemon.sh(&id, SLEEPERS).ok(), "0", "something of its tree is left");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let daemon = daemon!();
    let id = daemon.create();
    for (body, field) in [
        (json!({ "argv": ["true"], "ready": { "tcp": true } }), "port"),
        (json!({ "argv": ["true"], "port": 80, "ready": {} }), "ready"),
        (json!({ "argv": ["true"], "port": 80, "ready": { "http_path": "x" } }), "ready.http_path"),
        (json!({ "argv": [] }), "argv"),
    ] {
        let refused = daemon.expect(400, "POST", &path(&id, ""), &body);
        let detail = refused["detail"].as_str().expect("a detail");
        assert!(detail.starts_with(&format!("{field}: ")), "{refused:#}");
    }
    let wrong = daemon.expect(400, "POST", &path(&id, ""), &json!({ "argv": ["a"], "port": 0 }));
    assert_eq!(wrong["code"], "malformed_body");
    for name in ["pr", "praaaaaaaaaaaaaaaaaaaaaaaaaa", "nonsense"] {
        let missing = daemon.expect(404, "GET", &path(&id, &format!("/{name}")), &Value::Null);
        assert_eq!(missing["code"], "process_not_found");
    }
    let exec = daemon.sh(&id, "true").answer["exec_id"].as_str().expect("an id").to_owned();
    let other = exec.replacen("ex", "pr", 1);
    daemon.expect(404, "GET", &path(&id, &format!("/{other}")), &Value::Null);
}
