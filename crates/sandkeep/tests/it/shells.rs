//! Persistent shells through the API. The guest's tests cover each shell's behaviour; these cover what the daemon adds.

use sandkeep_bench::http::Connection;
use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, Setup, until};

fn open(daemon: &Daemon, id: &str, body: &Value) -> String {
    let shell = daemon.expect(201, "POST", &format!("/api/v1/sandboxes/{id}/shells"), body);
    format!("/api/v1/sandboxes/{id}/shells/{}", shell["id"].as_str().expect("an id"))
}

fn run(daemon: &Daemon, shell: &str, body: &Value) -> Value {
    daemon.expect(200, "POST", &format!("{shell}/execs"), body)
}

/// Runs a command that succeeds; what it has said.
fn says(daemon: &Daemon, shell: &str, command: &str) -> String {
    let answer = run(daemon, shell, &json!({ "command": command }));
    assert_eq!(
        (&answer["outcome"], &answer["exit_code"]),
        (&json!("exited"), &json!(0)),
        "{answer}"
    );
    assert_eq!(answer["shell"], "kept", "{answer}");
    answer["stdout"].as_str().expect("text").to_owned()
}

#[test]
fn a_shell_is_opened_listed_used_and_ended() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "env": { "FROM": "sandbox" } }));
    let shells = format!("/api/v1/sandboxes/{id}/shells");
    let opened = daemon.expect(201, "POST", &shells, &Value::Null);
    assert_eq!((&opened["shell"], &opened["state"]), (&json!("bash"), &json!("ready")), "{opened}");
    assert!(opened["created_at"].is_string(), "{opened}");
    let with_all =
        json!({ "shell": "/bin/sh", "env": { "OWN": "shell" }, "cwd": "/tmp", "user": "root" });
    let sh = open(&daemon, &id, &with_all);
    assert_eq!(says(&daemon, &sh, "echo $FROM $OWN; pwd; id -u"), "sandbox shell\n/tmp\n0\n");

    let listed = daemon.expect(200, "GET", &shells, &Value::Null);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
    let users = [&listed["items"][0]["user"], &listed["items"][1]["user"]];
    assert_eq!(users, [&json!("user"), &json!("root")], "{listed}");
    let execs = daemon.expect(200, "GET", &format!("/api/v1/sandboxes/{id}/execs"), &Value::Null);
    assert_eq!(execs["items"][0]["user"], "root", "{execs}");
    assert_eq!(listed["items"][0], opened);
    let bash = format!("{shells}/{}", opened["id"].as_str().expect("an id"));
    assert_eq!(daemon.expect(200, "GET", &bash, &Value::Null), opened);

    says(&daemon, &bash, "cd /usr; x=5; f() { echo f $1; }");
    assert_eq!(says(&daemon, &bash, "pwd; f $x; id -un"), "/usr\nf 5\nuser\n");
    let answer = run(&daemon, &bash, &json!({ "command": "cat >&2; exit 3", "stdin": "in" }));
    assert_eq!((&answer["exit_code"], &answer["shell"]), (&json!(3), &json!("ended")), "{answer}");
    assert_eq!((&answer["stdout"], &answer["stderr"]), (&json!(""), &json!("in")));
    let refused = daemon.expect(409, "POST", &format!("{bash}/execs"), &json!({ "command": ":" }));
    assert_eq!(refused["code"], "shell_ended");
    assert_eq!(daemon.expect(200, "GET", &bash, &Value::Null)["state"], "ended");

    for shell in [&bash, &sh] {
        daemon.expect(204, "DELETE", shell, &Value::Null);
        assert_eq!(daemon.expect(404, "GET", shell, &Value::Null)["code"], "shell_not_found");
        let execs = format!("{shell}/execs");
        let gone = daemon.expect(404, "POST", &execs, &json!({ "command": ":" }));
        assert_eq!(gone["code"], "shell_not_found");
    }
    daemon.destroy(&id);
    daemon.assert_no_leaks();
}

#[test]
fn a_command_of_a_shell_is_an_exec_like_any_other() {
    let daemon = daemon!();
    let id = daemon.create();
    let shell = open(&daemon, &id, &json!({ "shell": "sh" }));
    let execs = format!("{shell}/execs");

    // Not waited for, looked at, read again.
    let command = json!({ "command": "echo out; echo err >&2; false" });
    let begun = daemon.expect(202, "POST", &format!("{execs}?wait=false"), &command);
    let exec =
        format!("/api/v1/sandboxes/{id}/execs/{}", begun["exec_id"].as_str().expect("an id"));
    until("the command has ended", Patience::Short, || {
        daemon.expect(200, "GET", &exec, &Value::Null)["status"] == "exited"
    });
    let seen = daemon.expect(200, "GET", &exec, &Value::Null);
    assert_eq!((&seen["exit_code"], &seen["shell"]), (&json!(1), &json!("kept")), "{seen}");
    assert!(shell.ends_with(seen["shell_id"].as_str().expect("its shell")), "{seen}");

    // Live.
    let connection = Connection::open(daemon.address()).expect("the daemon listens");
    let body = json!({ "command": "echo $?; printf live" }).to_string();
    let (status, lines) =
        connection.stream("POST", &format!("{execs}?stream=true"), &body).expect("an answer");
    assert_eq!(status, 200);
    let events: Vec<Value> = lines
        .map_while(Result::ok)
        .map(|line| serde_json::from_str(&line).expect("an event"))
        .collect();
    let text: String = events.iter().filter_map(|event| event["data"].as_str()).collect();
    assert_eq!(text, "1\nlive");
    let last = events.last().expect("an end");
    assert_eq!((&last["type"], &last["shell"]), (&json!("exited"), &json!("kept")), "{last}");

    // Too late, and canceled.
    let late =
        run(&daemon, &shell, &json!({ "command": "sleep 1000; echo NOT", "timeout_ms": 200 }));
    assert_eq!((&late["outcome"], &late["shell"]), (&json!("timed_out"), &json!("kept")), "{late}");
    assert_eq!(late["stdout"], "");
    let begun = daemon.expect(
        202,
        "POST",
        &format!("{execs}?wait=false"),
        &json!({ "command": "sleep 1000" }),
    );
    let exec =
        format!("/api/v1/sandboxes/{id}/execs/{}", begun["exec_id"].as_str().expect("an id"));
    daemon.expect(204, "DELETE", &exec, &Value::Null);
    until("the command is canceled", Patience::Short, || {
        daemon.expect(200, "GET", &exec, &Value::Null)["status"] == "canceled"
    });
    assert_eq!(says(&daemon, &shell, "echo still here"), "still here\n");
}

#[test]
fn shells_and_their_queues_survive_the_daemon() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let shell = open(&daemon, &id, &json!({ "shell": "bash" }));
    says(&daemon, &shell, "x=kept; cd /tmp");
    let begin = |command: &str| {
        let target = format!("{shell}/execs?wait=false");
        let begun = daemon.expect(202, "POST", &target, &json!({ "command": command }));
        format!("/api/v1/sandboxes/{id}/execs/{}", begun["exec_id"].as_str().expect("an id"))
    };
    let first = begin("until [ -e go ]; do sleep 0.01; done; echo first");
    let second = begin("echo second $x");
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.expect(200, "GET", &shell, &Value::Null)["state"], "busy");
    daemon.sh(&id, "touch /tmp/go").ok();
    for (exec, bytes) in [(&first, 6), (&second, 12)] {
        until("the command has ended", Patience::Short, || {
            daemon.expect(200, "GET", exec, &Value::Null)["status"] == "exited"
        });
        let seen = daemon.expect(200, "GET", exec, &Value::Null);
        assert_eq!(
            (&seen["stdout_bytes"], &seen["shell"]),
            (&json!(bytes), &json!("kept")),
            "{seen}"
        );
    }
    assert_eq!(says(&daemon, &shell, "echo $x; pwd"), "kept\n/tmp\n");
    daemon.expect(204, "DELETE", &shell, &Value::Null);
}

#[test]
fn what_a_shell_cannot_do_is_refused_and_says_why() {
    let daemon = daemon!();
    let id = daemon.create();
    let shells = format!("/api/v1/sandboxes/{id}/shells");
    for bad in [
        json!({ "shell": "fish" }),
        json!({ "cwd": "" }),
        json!({ "cwd": "not/there" }),
        json!({ "cwd": "/no/such" }),
        json!({ "user": "nobody-of-this-name" }),
        json!({ "env": { "A=B": "c" } }),
        json!({ "shel": "sh" }),
    ] {
        let problem = daemon.expect(400, "POST", &shells, &bad);
        assert!(problem["detail"].is_string(), "{problem}");
    }
    let shell = open(&daemon, &id, &json!({ "shell": "sh" }));
    let execs = format!("{shell}/execs");
    for bad in [
        json!({}),
        json!({ "argv": ["true"] }),
        json!({ "command": "a\u{0}b" }),
        json!({ "command": "true", "timeout_ms": 0 }),
        json!({ "command": "true", "stdin": "a", "stdin_b64": "YQ==" }),
        json!({ "command": "x".repeat(1024 * 1024 + 1) }),
    ] {
        daemon.expect(400, "POST", &execs, &bad);
    }
    for _ in 1..32 {
        open(&daemon, &id, &json!({ "shell": "sh" }));
    }
    assert_eq!(daemon.expect(429, "POST", &shells, &Value::Null)["code"], "limit_reached");
    daemon.verb(&id, "stop");
    assert_eq!(daemon.expect(409, "POST", &shells, &Value::Null)["code"], "wrong_state");
}
