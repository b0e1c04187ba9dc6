//! API keys: the first one switches to keys mode permanently, each grants its scopes, and a revoked one grants nothing
//! any more, even on existing connections and streams.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use sandkeep_bench::http::Connection;
use serde_json::{Value, json};

use crate::support::{Daemon, Patience, Ran, Setup, binary, until};
use crate::{daemon, skip_if};

/// `sandkeep keys <arguments> --data-dir <dir>`.
pub fn keys(data_dir: &Path, arguments: &[&str]) -> Ran {
    let mut command = binary();
    command.arg("keys").args(arguments).arg("--data-dir").arg(data_dir);
    command.output().expect("the binary runs").into()
}

/// A new key, as `sandkeep keys create --json` shows it.
pub fn create_key(data_dir: &Path, organization: &str, user: &str, more: &[&str]) -> Value {
    let fixed = ["create", "--organization", organization, "--user", user, "--json"];
    let ran = keys(data_dir, &[&fixed[..], more].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"))
}

pub fn key_of(made: &Value) -> &str {
    made["key"].as_str().expect("a key")
}

/// The status of one request with these headers.
fn status(daemon: &Daemon, headers: &[(&str, &str)], method: &str, target: &str) -> u16 {
    let mut connection = Connection::open(daemon.address()).expect("it listens");
    for (name, value) in headers {
        connection = connection.with_header(name, value);
    }
    connection.request(method, target, "").expect("an answer").status
}

/// A daemon that needs keys, and whose admin is asked by `daemon` from then on.
pub fn with_admin(setup: &Setup) -> Daemon {
    let mut daemon = Daemon::start_with(setup);
    let admin = create_key(&daemon.data_dir(), "ops", "root", &["--scope", "admin"]);
    daemon.use_key(key_of(&admin));
    daemon
}

#[test]
fn the_first_key_beside_a_running_daemon_closes_it_for_good() {
    let mut daemon = daemon!();
    let mut open = Connection::open(daemon.address()).expect("it listens");
    let ask = |connection: &mut Connection| {
        connection.request("GET", "/api/v1/sandboxes", "").expect("an answer").status
    };
    assert_eq!(ask(&mut open), 200);
    let made = create_key(&daemon.data_dir(), "acme", "ann", &["--scope", "admin"]);
    assert_eq!(ask(&mut open), 401, "the connection was there before the key");
    let mut keyed = Connection::open(daemon.address())
        .expect("it listens")
        .with_header("authorization", &format!("Bearer {}", key_of(&made)));
    assert_eq!(ask(&mut keyed), 200);
    let revoked = keys(&daemon.data_dir(), &["revoke", made["id"].as_str().expect("an id")]);
    assert_eq!(revoked.code, 0, "{revoked:?}");
    assert_eq!(ask(&mut keyed), 401, "on a connection that was good before");
    assert_eq!(daemon.stop().code(), Some(0));
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.request("GET", "/api/v1/sandboxes", &Value::Null).0, 401);
    assert_eq!(daemon.request("GET", "/healthz", &Value::Null).0, 200);
    let again = create_key(&daemon.data_dir(), "acme", "ann", &["--scope", "admin"]);
    daemon.use_key(key_of(&again));
    assert!(daemon.ids().is_empty());
}

#[test]
fn keys_are_made_listed_and_revoked_without_a_daemon_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let none = keys(&data, &["ls", "--json"]);
    assert_eq!((none.code, data.exists()), (0, false), "to look makes nothing: {none:?}");
    let more = ["--project", "web", "--scope", "read", "--expires", "30d", "--name", "for CI"];
    let made = create_key(&data, "acme", "ann", &more);
    assert_eq!(
        (&made["organization"], &made["user"], &made["project"], &made["scopes"], &made["name"]),
        (&json!("acme"), &json!("ann"), &json!("web"), &json!(["read"]), &json!("for CI"))
    );
    assert!(made["created_at"].is_string() && made["expires_at"].is_string(), "{made}");
    assert!(key_of(&made).starts_with("sk_"));
    let plain = create_key(&data, "acme", "bob", &[]);
    assert_eq!(plain["scopes"], json!(["read", "write"]));
    assert!(plain["expires_at"].is_null() && plain["project"].is_null());
    let listed = keys(&data, &["ls", "--json"]);
    let items: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(items["items"].as_array().map(Vec::len), Some(2), "{listed:?}");
    assert!(!listed.stdout.contains(key_of(&made)) && !listed.stdout.contains("hash"));
    let id = made["id"].as_str().expect("an id");
    assert_eq!(keys(&data, &["revoke", id]).code, 0);
    let again = keys(&data, &["revoke", id]);
    assert!(again.code == 1 && again.complaint().contains("keys ls"), "{again:?}");
    assert_eq!(keys(&data, &["revoke", "nonsense"]).code, 2);
    for bad in [["--expires", "2001-01-01T00:00:00Z"], ["--user", ""], ["--scope", "root"]] {
        let ran = keys(&data, &[&["create", "--organization", "o"], &bad[..]].concat());
        assert_ne!(ran.code, 0, "{bad:?}: {ran:?}");
    }
}

#[test]
fn a_credential_comes_in_either_header_and_only_one_is_believed() {
    skip_if!(crate::support::obstacle());
    let daemon = with_admin(&Setup::default());
    let (one, two) = (
        create_key(&daemon.data_dir(), "a", "u", &[]),
        create_key(&daemon.data_dir(), "b", "u", &[]),
    );
    let (one, two) = (key_of(&one).to_owned(), key_of(&two).to_owned());
    let bearer = |key: &str| format!("Bearer {key}");
    let get = |headers: &[(&str, &str)]| status(&daemon, headers, "GET", "/api/v1/sandboxes");
    assert_eq!(get(&[("Authorization", &bearer(&one))]), 200);
    assert_eq!(get(&[("authorization", &format!("bearer {one}"))]), 200);
    assert_eq!(get(&[("X-API-Key", &one)]), 200);
    assert_eq!(get(&[("X-API-Key", &one), ("Authorization", &bearer(&one))]), 200);
    assert_eq!(get(&[("X-API-Key", &one), ("Authorization", &bearer(&two))]), 401);
    assert_eq!(get(&[("X-API-Key", &one), ("X-API-Key", &two)]), 401);
    assert_eq!(get(&[("Authorization", &format!("Basic {one}"))]), 401);
    assert_eq!(get(&[("Authorization", &one)]), 401);
    assert_eq!(get(&[("X-API-Key", &one[..one.len() - 1])]), 401);
    assert_eq!(get(&[("X-API-Key", &format!("{}0", &one[..one.len() - 1]))]), 401);
    let answer =
        raw(&daemon, "GET /api/v1/sandboxes HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(answer.to_lowercase().contains("www-authenticate: bearer"), "{answer}");
    assert!(answer.contains("\"unauthenticated\"") && answer.contains("remediation"), "{answer}");
    let said = daemon.said();
    assert!(!said.contains(&one) && !said.contains(&two), "a key is in the log");
}

fn raw(daemon: &Daemon, request: &str) -> String {
    let mut stream = TcpStream::connect(daemon.address()).expect("it listens");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers and closes");
    answer
}

#[test]
fn a_revoked_key_ends_its_open_streams() {
    skip_if!(crate::support::obstacle());
    let daemon = with_admin(&Setup::default());
    let made = create_key(&daemon.data_dir(), "acme", "ann", &[]);
    let connect = || {
        let connection = Connection::open(daemon.address()).expect("it listens");
        connection.with_header("x-api-key", key_of(&made))
    };
    let created = connect().request("POST", "/api/v1/sandboxes", "").expect("an answer");
    let view: Value = serde_json::from_slice(&created.body).expect("JSON");
    let target = format!("/api/v1/sandboxes/{}/execs", view["id"].as_str().expect("an id"));
    let body = json!({ "command": "while echo tick; do sleep 0.05; done" }).to_string();
    let (status, mut lines) = connect().stream("POST", &target, &body).expect("a stream");
    assert_eq!(status, 200);
    lines.next().expect("it began").expect("a line");
    let id = made["id"].as_str().expect("an id");
    assert_eq!(keys(&daemon.data_dir(), &["revoke", id]).code, 0);
    until("the stream is cut off", Patience::Short, || match lines.next() {
        Some(Ok(_)) => false,
        Some(Err(_)) => true,
        None => panic!("the stream ended as if it were complete"),
    });
}

#[test]
fn an_admin_makes_keys_through_the_api_and_nobody_else_does() {
    let mut daemon = daemon!();
    let draft = json!({ "organization": "ops", "user": "root", "scopes": ["admin"] });
    let first = daemon.expect(201, "POST", "/api/v1/keys", &draft);
    assert_eq!(daemon.request("GET", "/api/v1/keys", &Value::Null).0, 401);
    daemon.use_key(key_of(&first));
    let draft = json!({ "organization": "acme", "user": "ann" });
    let made = daemon.expect(201, "POST", "/api/v1/keys", &draft);
    let plain = [("x-api-key", key_of(&made))];
    assert_eq!(status(&daemon, &plain, "GET", "/api/v1/keys"), 403);
    assert_eq!(status(&daemon, &plain, "GET", "/metrics"), 403);
    assert_eq!(status(&daemon, &plain, "GET", "/api/v1/sandboxes"), 200);
    let wrong =
        daemon.expect(400, "POST", "/api/v1/keys", &json!({ "organization": "a", "user": "" }));
    assert!(wrong["detail"].as_str().is_some_and(|d| d.contains("user")), "{wrong}");
    daemon.expect(
        400,
        "POST",
        "/api/v1/keys",
        &json!({ "organization": "a", "user": "b", "x": 1 }),
    );
    let mut cli = binary();
    cli.args(["--url", &daemon.url(), "keys", "ls", "--json"]);
    let ran: Ran = cli.env("SANDKEEP_API_KEY", key_of(&first)).output().expect("it runs").into();
    let listed: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
    let target = format!("/api/v1/keys/{}", made["id"].as_str().expect("an id"));
    daemon.expect(204, "DELETE", &target, &Value::Null);
    assert_eq!(daemon.expect(404, "DELETE", &target, &Value::Null)["code"], "key_not_found");
    assert_eq!(status(&daemon, &plain, "GET", "/api/v1/sandboxes"), 401);
}

#[test]
fn others_can_reach_it_only_where_they_need_a_credential() {
    let dir = tempfile::tempdir().expect("a directory");
    let serve = |more: &[&str]| -> Ran {
        let mut command = binary();
        command.args(["serve", "--listen", "0.0.0.0:0", "--storage", "local", "--data-dir"]);
        command.arg(dir.path()).args(more).output().expect("the binary runs").into()
    };
    let refused = serve(&[]);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(refused.complaint().contains("sandkeep keys create"), "{refused:?}");
    skip_if!(crate::support::obstacle());
    let mut daemon = with_admin(&Setup::default());
    daemon.stop();
    daemon.start_again(&Setup::default().argument("--listen=0.0.0.0:0"));
    assert!(daemon.said().contains("without TLS"), "{}", daemon.said());
    assert_eq!(status(&daemon, &[], "GET", "/api/v1/sandboxes"), 401);
    assert!(daemon.ids().is_empty(), "the admin is served");
}

#[test]
fn pages_of_invited_origins_may_call_and_others_may_not() {
    skip_if!(crate::support::obstacle());
    let daemon = with_admin(&Setup::default().env("CORS_ORIGINS", "https://app.example"));
    let preflight = |origin: &str| {
        raw(&daemon, &format!(
            "OPTIONS /api/v1/sandboxes HTTP/1.1\r\nhost: x\r\norigin: {origin}\r\nconnection: close\r\n\
             access-control-request-method: POST\r\naccess-control-request-headers: x-api-key\r\n\r\n"
        ))
        .to_lowercase()
    };
    let invited = preflight("https://app.example");
    assert!(invited.starts_with("http/1.1 204"), "{invited}");
    assert!(invited.contains("access-control-allow-origin: https://app.example\r\n"), "{invited}");
    assert!(invited.contains("access-control-allow-headers: x-api-key"), "{invited}");
    let other = preflight("https://evil.example");
    assert!(
        other.starts_with("http/1.1 403") && !other.contains("access-control-allow"),
        "{other}"
    );
    let refused = raw(
        &daemon,
        "GET /api/v1/sandboxes HTTP/1.1\r\nhost: x\r\norigin: https://app.example\r\nconnection: close\r\n\r\n",
    );
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    assert!(
        refused.to_lowercase().contains("access-control-allow-origin"),
        "the page may read why"
    );
}
