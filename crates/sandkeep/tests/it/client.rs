//! The commands against a daemon with scripted answers: their requests, and how they interpret the answers.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};

use serde_json::{Value, json};

use crate::support::{Ran, binary};

const ONE: &str = "sbaaaaaaaaaaaaaaaaaaaaaaaaaa";
const TWO: &str = "sbbbbbbbbbbbbbbbbbbbbbbbbbbb";

/// A request as it came.
#[derive(Debug)]
struct Request {
    line: String,
    headers: Vec<String>,
    body: Value,
}

/// Answers each connection's one request with the next of these.
struct Scripted {
    url: String,
    requests: Receiver<Request>,
}

fn scripted(answers: Vec<(u16, Value)>) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for (status, answer) in answers {
            let (stream, _) = listener.accept().expect("the command calls");
            let request = read(&stream);
            let body = answer.to_string();
            let head = format!(
                "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            (&stream).write_all((head + &body).as_bytes()).expect("the command reads");
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    Scripted { url, requests }
}

fn read(stream: &TcpStream) -> Request {
    let mut reader = BufReader::new(stream);
    let mut lines = reader.by_ref().lines().map(|line| line.expect("text"));
    let line = lines.next().expect("a request line");
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let length = headers.iter().find_map(|header| header.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
    reader.read_exact(&mut body).expect("the body comes");
    Request { line, headers, body: serde_json::from_slice(&body).unwrap_or_default() }
}

impl Scripted {
    fn call(&self, arguments: &[&str]) -> Ran {
        let output = binary().env("SANDKEEP_URL", &self.url).args(arguments).output();
        let ran: Ran = output.expect("the binary runs").into();
        ran.assert_no_panic();
        ran
    }

    fn request(&self) -> Request {
        self.requests.recv().expect("a request came")
    }
}

fn sandbox(id: &str) -> Value {
    json!({
        "id": id, "name": "brave-otter-aaaa", "state": "running", "runtime": "native", "template": "host", "created_at": "2026-01-01T00:00:00.5Z",
        "owner": { "organization": "local", "user": "local", "project": "default" }, "labels": {},
        "resources": { "memory_mb": 64, "cpus": 1.0, "pids": 9 }, "privilege": "none", "on_timeout": "destroy", "workdir": "/home/user",
        "last_activity_at": "2026-01-01T00:00:00.5Z", "turn_count": 0, "snapshot_count": 0, "snapshot_tool_calls": false,
        "space_used": null,
    })
}

fn problem(detail: &str) -> Value {
    json!({
        "type": "urn:sandkeep:error:invalid_field", "title": "A field is wrong", "status": 400, "detail": detail,
        "code": "invalid_field", "remediation": "correct it", "retryable": false, "instance": "/",
    })
}

#[test]
fn ls_filters_and_follows_the_pages_to_their_end() {
    let daemon = scripted(vec![
        (200, json!({ "items": [sandbox(ONE)], "next_cursor": "next page" })),
        (200, json!({ "items": [sandbox(TWO)] })),
    ]);
    let ran = daemon.call(&["ls", "-l", "a=b&c", "--state", "running", "--project", "web"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains(ONE) && ran.stdout.contains(TWO), "{ran:?}");
    let first = daemon.request().line;
    assert!(first.contains("label=a%3Db%26c&state=running&project=web&limit="), "{first}");
    let second = daemon.request().line;
    assert!(second.contains("project=web") && second.contains("cursor=next+page"), "{second}");
}

#[test]
fn ls_takes_several_states_and_either_order() {
    let daemon = scripted(vec![(200, json!({ "items": [sandbox(TWO), sandbox(ONE)] }))]);
    let ran = daemon.call(&["ls", "--state", "running", "--state", "stopped", "--reverse"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.find(TWO) < ran.stdout.find(ONE), "the daemon's order is kept: {ran:?}");
    let asked = daemon.request().line;
    assert!(asked.contains("state=running&state=stopped&sort=-created_at&limit="), "{asked}");
}

#[test]
fn ls_asks_for_no_more_than_its_limit() {
    let daemon =
        scripted(vec![(200, json!({ "items": [sandbox(ONE), sandbox(TWO)], "next_cursor": "x" }))]);
    let ran = daemon.call(&["ls", "--limit", "1", "--json"]);
    let listed: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    assert!(daemon.request().line.contains("limit=1 "));
}

#[test]
fn the_key_is_sent_and_never_shown() {
    let daemon = scripted(vec![(200, json!({ "items": [] })), (401, problem("no such key"))]);
    let call = || {
        let mut command = binary();
        command.env("SANDKEEP_URL", &daemon.url).env("SANDKEEP_API_KEY", "sk_hush");
        Ran::from(command.args(["--log", "trace", "ls"]).output().expect("the binary runs"))
    };
    for code in [0, 1] {
        let ran = call();
        assert_eq!(ran.code, code, "{ran:?}");
        assert!(!format!("{ran:?}").contains("hush"), "{ran:?}");
        let headers = daemon.request().headers;
        assert!(headers.contains(&"authorization: Bearer sk_hush".to_owned()), "{headers:?}");
    }
    let wrong = binary()
        .env("SANDKEEP_API_KEY", "hush\u{1}")
        .args(["ls", "--url", "http://127.0.0.1:1"])
        .output();
    let wrong: Ran = wrong.expect("the binary runs").into();
    assert!(wrong.code == 2 && !format!("{wrong:?}").contains("hush"), "{wrong:?}");
}

#[test]
fn ensure_prints_the_id_whether_it_was_made_or_found() {
    for created in [true, false] {
        let daemon = scripted(vec![(200, json!({ "sandbox": sandbox(ONE), "created": created }))]);
        let ran = daemon.call(&["ensure", "--slot", "main", "--memory-mb", "64"]);
        assert_eq!((ran.code, ran.stdout.trim()), (0, ONE), "{ran:?}");
        let request = daemon.request();
        assert_eq!(request.line, "POST /api/v1/sandboxes/ensure HTTP/1.1");
        assert_eq!(request.body, json!({ "slot": "main", "resources": { "memory_mb": 64 } }));
    }
    let ran = scripted(vec![]).call(&["ensure"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.complaint().contains("--slot"), "{ran:?}");
}

#[test]
fn stats_are_a_table_or_json() {
    let stats = json!({ "cpu_micros": 2_000_000, "memory_bytes": 1_048_576, "pids": 3 });
    let daemon = scripted(vec![(200, stats.clone()), (200, stats.clone())]);
    let ran = daemon.call(&["stats", ONE]);
    assert!(ran.stdout.contains("2.0 s") && ran.stdout.contains("1.0 MiB"), "{ran:?}");
    assert_eq!(daemon.request().line, format!("GET /api/v1/sandboxes/{ONE}/stats HTTP/1.1"));
    let ran = daemon.call(&["stats", ONE, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&ran.stdout).ok(), Some(stats));
}

#[test]
fn a_refusal_speaks_of_the_option_that_was_typed() {
    let daemon = scripted(vec![(400, problem("resources.memory_mb: 1 is too little"))]);
    let ran = daemon.call(&["create", "--memory-mb", "1"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(ran.complaint(), "sandkeep: --memory-mb: 1 is too little");
}

#[test]
fn rm_all_destroys_nothing_that_nobody_agreed_to() {
    let listing = || (200, json!({ "items": [sandbox(ONE), sandbox(TWO)] }));
    let ran = scripted(vec![listing()]).call(&["rm", "--all"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.complaint().contains("2 sandboxes") && ran.complaint().contains("-y"), "{ran:?}");

    let daemon = scripted(vec![listing(), (204, Value::Null), (204, Value::Null)]);
    let ran = daemon.call(&["rm", "--all", "-y", "--label", "a=b"]);
    assert_eq!((ran.code, &*ran.stdout), (0, &*format!("{ONE}\n{TWO}\n")), "{ran:?}");
    assert!(daemon.request().line.contains("label=a%3Db"));

    let ran = scripted(vec![(200, json!({ "items": [] }))]).call(&["rm", "--all"]);
    assert_eq!((ran.code, &*ran.stdout), (0, ""), "{ran:?}");
    let ran = scripted(vec![]).call(&["rm", ONE, "--label", "a=b"]);
    assert_eq!(ran.code, 2, "{ran:?}");
}

#[test]
fn every_command_has_a_manual_page_that_man_can_read() {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().to_str().expect("text");
    let ran = scripted(vec![]).call(&["man", dir]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let page = |name: &str| fs::read_to_string(place.path().join(name)).unwrap_or_default();
    for name in ["sandkeep.1", "sandkeep-create.1", "sandkeep-process-logs.1", "sandkeep-usage.1"] {
        assert!(page(name).contains(".SH SYNOPSIS"), "{name}: {ran:?}");
    }
    assert!(page("sandkeep-apply.1").contains(r"\-\-theirs"), "its options");
    for hidden in ["sandkeep-launcher.1", "sandkeep-sweep.1", "sandkeep-processes.1"] {
        assert_eq!(page(hidden), "", "{hidden} is for the program itself");
    }
    let none = scripted(vec![]).call(&["man", "/nowhere"]);
    assert!(none.code != 0 && none.stderr.contains("directory"), "{none:?}");
}

#[test]
fn every_shell_can_be_taught() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = scripted(vec![]).call(&["completions", shell]);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.stdout.contains("ensure"), "{shell}: {}", ran.stdout);
    }
}
