//! The Model Context Protocol with its official client in a separate process (`tests/mcp/client.py`), over both
//! transports.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Setup, binary, obstacle, top};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sandkeep");

/// Where `./test` installs it.
fn python() -> PathBuf {
    top().join("target/mcp/bin/python3")
}

fn missing() -> Option<&'static str> {
    (!python().exists()).then_some("the client is not installed; ./test does it from PyPI")
}

/// Runs all checks of the client.
fn check(arguments: &[&str], env: &[(&str, &str)]) {
    let mut client = Command::new(python());
    // Variables of the caller's shell must not decide a test.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SANDKEEP_") {
            client.env_remove(name);
        }
    }
    let ran = client
        .arg(top().join("tests/mcp/client.py"))
        .args(arguments)
        .envs(env.iter().copied())
        .output()
        .expect("it runs");
    let (said, errors) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{said}\n{errors}");
    assert!(said.contains("files_are_resources"), "it did not get to the last check: {said}");
}

#[test]
fn the_official_client_works_on_stdio_without_a_daemon() {
    skip_if!(obstacle());
    skip_if!(missing());
    let parent = tempfile::tempdir().expect("a temp dir");
    let path = parent.path().to_str().expect("a path of ours is UTF-8");
    check(&["stdio", PROGRAM, "mcp"], &[("TMPDIR", path)]);
    let left: Vec<_> = std::fs::read_dir(parent.path()).expect("it is there").collect();
    assert!(left.is_empty(), "it left {left:?}");
}

#[test]
fn the_official_client_works_on_stdio_for_a_daemon() {
    skip_if!(obstacle());
    skip_if!(missing());
    let daemon = Daemon::start();
    check(&["stdio", PROGRAM, "mcp"], &[("SANDKEEP_URL", &daemon.url())]);
    assert_eq!(daemon.ids(), [""; 0], "its default sandbox is the session's own, and ends with it");
    daemon.assert_no_leaks();
}

/// A session on stdio, one call after the other.
struct Session {
    child: std::process::Child,
    answers: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
    sent: u64,
}

impl Session {
    fn begin(daemon: &Daemon, arguments: &[&str]) -> Self {
        let mut command = binary();
        command.env("SANDKEEP_URL", daemon.url()).arg("mcp").args(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let stdout = child.stdout.take().expect("it is piped");
        let mut session = Self { child, answers: std::io::BufReader::new(stdout).lines(), sent: 0 };
        let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {},
                            "clientInfo": { "name": "test", "version": "1" } });
        session.ask("initialize", &hello);
        session.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        session
    }

    fn send(&mut self, message: &Value) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{message}").expect("it reads");
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.sent += 1;
        let id = self.sent;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        loop {
            let line = self.answers.next().expect("an answer").expect("a line");
            let answer: Value = serde_json::from_str(&line).expect("JSON");
            if answer["id"] == id {
                return answer;
            }
        }
    }

    fn call(&mut self, name: &str, arguments: &Value) -> Value {
        self.ask("tools/call", &json!({ "name": name, "arguments": arguments }))
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("it ends");
    }
}

#[test]
fn sessions_of_one_daemon_have_sandboxes_of_their_own_unless_told_otherwise() {
    let daemon = crate::daemon!();
    let app = tempfile::tempdir().expect("a directory");
    std::fs::write(app.path().join("f"), "from here").expect("a file");
    let path = app.path().to_str().expect("UTF-8");
    let mut one = Session::begin(&daemon, &["--source-dir", path, "--tools", "bash,read_file"]);
    let mut other = Session::begin(&daemon, &[]);
    let read = one.call("read_file", &json!({ "path": "f" }));
    assert!(read.to_string().contains("from here"), "{read}");
    let refused = other.call("read_file", &json!({ "path": "f" }));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    assert_eq!(daemon.ids().len(), 2);
    let listed = one.ask("tools/list", &json!({}));
    let names: Vec<_> = listed["result"]["tools"].as_array().expect("tools").iter().collect();
    assert_eq!(names.len(), 2, "{listed}");
    assert!(one.call("sandbox_list", &json!({}))["error"].is_object(), "it is not offered");
    let host = json!({ "source": { "dir": path } });
    let refused = other.call("sandbox_create", &host);
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    assert!(refused.to_string().contains("source.dir"), "{refused}");
    one.end();
    other.end();
    assert_eq!(daemon.ids(), [""; 0], "they end with their sessions");

    for n in 0..2 {
        let mut session = Session::begin(&daemon, &["--sandbox", "shared"]);
        let ran = session.call("bash", &json!({ "command": format!("echo {n} >> log; cat log") }));
        assert_eq!(ran["result"]["isError"], false, "{ran}");
        session.end();
    }
    let id = daemon.get("shared")["id"].as_str().expect("an id").to_owned();
    assert_eq!(daemon.sh(&id, "cat log").ok(), "0\n1", "it stays");
}

#[test]
fn the_official_client_works_over_http() {
    skip_if!(obstacle());
    skip_if!(missing());
    let daemon = Daemon::start();
    check(&["http", &format!("{}/mcp", daemon.url())], &[]);
    let ids = daemon.ids();
    assert_eq!(ids.len(), 1, "{ids:?}");
}

#[test]
fn a_key_opens_its_own_sandboxes_and_no_others() {
    skip_if!(obstacle());
    skip_if!(missing());
    let daemon = with_admin(&Setup::default());
    let made = create_key(&daemon.data_dir(), "one", "ann", &["--scope", "write"]);
    check(&["http", &format!("{}/mcp", daemon.url()), key_of(&made)], &[]);
    let other = create_key(&daemon.data_dir(), "two", "bob", &["--scope", "write"]);
    let listed = call(&daemon, Some(key_of(&other)), "sandbox_list", &json!({}));
    assert_eq!(listed["result"]["structuredContent"]["items"], json!([]), "{listed}");
}

#[test]
fn without_a_key_nothing_is_told() {
    skip_if!(obstacle());
    let daemon = with_admin(&Setup::default());
    let (status, _) = post(&daemon, None, &message("tools/list", &json!({})));
    assert_eq!(status, 401);
}

#[test]
fn a_web_page_of_somebody_else_cannot_call() {
    let daemon = crate::daemon!();
    let mut headers = HEADERS.to_vec();
    headers.push(("origin", "https://elsewhere.example"));
    let body = message("tools/list", &json!({}));
    let (status, _) = daemon.request_with(&headers, "POST", "/mcp", &body).expect("an answer");
    assert_eq!(status, 403);
}

#[test]
fn what_ends_stdin_ends_the_sandboxes() {
    skip_if!(obstacle());
    let parent = tempfile::tempdir().expect("a temp dir");
    let mut server = binary()
        .arg("mcp")
        .env("TMPDIR", parent.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    drop(server.stdin.take());
    let ended = server.wait().expect("a child");
    assert!(!ended.success(), "nobody has spoken to it");
    let left: Vec<_> = std::fs::read_dir(parent.path()).expect("it is there").collect();
    assert!(left.is_empty(), "it left {left:?}");
}

const HEADERS: [(&str, &str); 1] = [("accept", "application/json, text/event-stream")];

fn message(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
}

fn post(daemon: &Daemon, key: Option<&str>, body: &Value) -> (u16, Value) {
    let credential = key.map(|key| format!("Bearer {key}"));
    let mut headers = HEADERS.to_vec();
    headers.extend(credential.as_deref().map(|credential| ("authorization", credential)));
    daemon.request_with(&headers, "POST", "/mcp", body).expect("an answer")
}

fn call(daemon: &Daemon, key: Option<&str>, name: &str, arguments: &Value) -> Value {
    let params = json!({ "name": name, "arguments": arguments });
    let (status, answer) = post(daemon, key, &message("tools/call", &params));
    assert_eq!(status, 200, "{answer}");
    answer
}

#[test]
fn a_key_that_may_only_read_is_refused() {
    skip_if!(obstacle());
    let daemon = with_admin(&Setup::default());
    let made = create_key(&daemon.data_dir(), "reader", "ann", &["--scope", "read"]);
    let params = json!({ "name": "bash", "arguments": { "command": "true" } });
    let (status, refused) = post(&daemon, Some(key_of(&made)), &message("tools/call", &params));
    assert_eq!((status, &refused["code"]), (403, &json!("forbidden")), "{refused}");
}

#[test]
fn a_default_sandbox_that_is_stopped_is_started_and_one_that_is_gone_is_replaced() {
    let daemon = crate::daemon!();
    let bash = || {
        let ran = call(&daemon, None, "bash", &json!({ "command": "true" }));
        assert_eq!(ran["result"]["isError"], false, "{ran}");
        daemon.ids()
    };
    let first = bash();
    let named = json!({ "sandbox": first[0] });
    call(&daemon, None, "sandbox_stop", &named);
    assert_eq!(bash(), first, "it is the same, started again");
    call(&daemon, None, "sandbox_destroy", &named);
    let second = bash();
    assert_eq!(second.len(), 1, "{second:?}");
    assert_ne!(second, first);
}

#[test]
fn each_session_over_http_has_a_sandbox_of_its_own_until_it_ends() {
    let daemon = crate::daemon!();
    let begin = || {
        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" }
        });
        let hello = message("initialize", &hello);
        let answer = daemon.request_head(&HEADERS, "POST", "/mcp", &hello).expect("an answer");
        let id = answer.1.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        id.unwrap_or_else(|| panic!("no session: {answer:?}")).to_owned()
    };
    let pwd = |session: Option<&str>, target: &str| {
        let mut headers = HEADERS.to_vec();
        headers.push(("mcp-protocol-version", "2025-06-18"));
        headers.extend(session.map(|session| ("mcp-session-id", session)));
        let params = json!({ "name": "bash", "arguments": { "command": "cat /etc/hostname" } });
        let body = message("tools/call", &params);
        daemon.request_with(&headers, "POST", target, &body).expect("an answer")
    };
    let host = |session: Option<&str>, target: &str| {
        let (status, answer) = pwd(session, target);
        assert_eq!((status, &answer["result"]["isError"]), (200, &json!(false)), "{answer}");
        answer["result"]["content"].to_string()
    };
    let (one, two) = (begin(), begin());
    let first = host(Some(&one), "/mcp");
    assert_eq!(host(Some(&one), "/mcp"), first, "a session keeps its sandbox");
    assert_ne!(host(Some(&two), "/mcp"), first);
    assert_eq!(daemon.ids().len(), 2);
    let own = daemon.create_with(&json!({ "name": "own" }));
    assert!(host(Some(&one), "/mcp?sandbox=own").contains(&own), "told otherwise");
    host(None, "/mcp");
    assert_eq!(daemon.ids().len(), 4, "those without a session share one");
    let end = |session: &str| {
        let headers = [("mcp-session-id", session)];
        daemon.request_with(&headers, "DELETE", "/mcp", &Value::Null).expect("an answer").0
    };
    assert_eq!((end(&one), end(&one)), (204, 204));
    assert_eq!(daemon.ids().len(), 3, "its sandbox ended with it");
    assert_eq!((end("x"), pwd(Some("x"), "/mcp").0), (404, 404), "not a session of ours");
}

#[test]
fn a_call_is_one_request() {
    let daemon = crate::daemon!();
    call(&daemon, None, "sandbox_list", &json!({}));
    let mut connection = daemon.connection().expect("it listens");
    let answer = connection.request("GET", "/metrics", "").expect("an answer");
    let metrics = String::from_utf8_lossy(&answer.body).into_owned();
    let counted = |route: &str| {
        let label = format!("route=\"{route}\"");
        let lines = metrics.lines().filter(|line| line.contains("requests_total"));
        lines.filter(|line| line.contains(&label)).count()
    };
    assert_eq!((counted("/mcp"), counted("/api/v1/sandboxes")), (1, 0), "{metrics}");
}
