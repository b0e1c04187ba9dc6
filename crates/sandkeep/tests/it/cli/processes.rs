//! Processes and output by commands.

use std::io::Read;
use std::process::Stdio;

use super::{call, json, ok};
use crate::daemon;
use crate::support::{Patience, binary, until};

/// A server that any sandbox can run.
const SERVER: [&str; 5] = ["python3", "-u", "-m", "http.server", "8000"];

#[test]
fn a_server_is_started_listed_read_and_stopped_by_commands() {
    let daemon = daemon!();
    let id = daemon.create();
    let start = ["process", "start", &id, "--port", "8000", "--ready-path", "/", "-e", "A=b", "--"];
    let process = ok(&daemon, &[&start[..], &SERVER].concat());
    ok(&daemon, &["exec", &id, "--", "true"]);
    let listed = ok(&daemon, &["ps", &id]);
    let row = |text: &str| listed.lines().find(|line| line.contains(text)).unwrap_or_default();
    assert!(row(&process).contains("process") && row(&process).contains("running"), "{listed}");
    assert!(row("true").contains("exec") && row("true").contains("exited (0)"), "{listed}");
    assert_eq!(ok(&daemon, &["ps", "-q", &id]).lines().next(), Some(&*process));
    assert!(ok(&daemon, &["process", "ls", &id]).contains("127.0.0.1:"), "it has an address");
    until("its log tells of the request", Patience::Short, || {
        call(&daemon, &["process", "logs", &id]).stderr.contains("GET / ")
    });
    assert_eq!(ok(&daemon, &["process", "stop", &id, &process[..8]]), process);
    let seen = json(&daemon, &["process", "ls", &id, "--json"]);
    assert_eq!(seen["items"][0]["status"], "exited", "{seen}");
    assert_eq!(ok(&daemon, &["process", "stop", &id, "--all"]), "", "none runs");
}

#[test]
fn a_process_that_ends_before_it_is_ready_fails_with_its_last_words() {
    let daemon = daemon!();
    let id = daemon.create();
    let script = "echo no such module >&2; exit 3";
    let start = ["process", "start", &id, "-p", "8000", "--ready", "--", "sh", "-c", script];
    let ran = call(&daemon, &start);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("no such module\n"), "{ran:?}");
    assert!(ok(&daemon, &["process", "ls", &id]).contains("exited (3)"));
}

#[test]
fn logs_without_an_id_are_those_of_the_last_command() {
    let daemon = daemon!();
    let id = daemon.create();
    let ran = call(&daemon, &["logs", &id]);
    assert_eq!(ran.code, 2, "nothing has been run: {ran:?}");
    ok(&daemon, &["exec", &id, "--", "echo", "one"]);
    ok(&daemon, &["exec", &id, "--", "sh", "-c", "seq 1 3; echo late >&2"]);
    assert_eq!(ok(&daemon, &["logs", &id]), "1\n2\n3");
    let tail = call(&daemon, &["logs", "--tail", "2", &id]);
    assert_eq!((&*tail.stdout, &*tail.stderr), ("3\n", "late\n"));
    assert_eq!(ok(&daemon, &["logs", "--since", "1h", &id]), "one\n1\n2\n3");
    assert_eq!(ok(&daemon, &["logs", "--since", "2100-01-01T00:00:00Z", &id]), "");
}

#[test]
fn a_followed_tail_goes_on_where_it_ends() {
    let daemon = daemon!();
    let id = daemon.create();
    let script = "echo a; echo b; while [ ! -e go ]; do sleep 0.05; done; echo c";
    let process = ok(&daemon, &["process", "start", &id, "--", "sh", "-c", script]);
    until("it has spoken", Patience::Short, || ok(&daemon, &["logs", &id, &process]) == "a\nb");
    let mut logs = binary();
    logs.env("SANDKEEP_URL", daemon.url()).args(["logs", "-f", "--tail", "1", &id]);
    let mut child = logs.stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut stdout = child.stdout.take().expect("it is piped");
    let mut first = [0; 2];
    stdout.read_exact(&mut first).expect("the tail");
    assert_eq!(&first, b"b\n");
    ok(&daemon, &["exec", &id, "--", "touch", "go"]);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("the rest");
    assert_eq!(rest, "c\n");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn kill_takes_the_beginning_of_an_id_of_a_process_as_well() {
    let daemon = daemon!();
    let id = daemon.create();
    let process = ok(&daemon, &["process", "start", &id, "--", "sleep", "1003"]);
    let exec = ok(&daemon, &["kill", &id, &process[..9]]);
    assert_eq!(exec[2..], process[2..], "it says which exec it was");
    until("it has ended", Patience::Short, || {
        ok(&daemon, &["ps", &id]).contains("exited (signal 15)")
    });
}
