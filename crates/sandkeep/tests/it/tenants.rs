//! Every operation in the daemon's description, tried without permission: without a credential, with a wrong one, as
//! another tenant, and without the required scope. A new operation is covered by being described.

use std::collections::BTreeSet;

use sandkeep_bench::http::Connection;
use serde_json::{Value, json};

use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Setup};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden/public-operations.txt");
/// It occurs in nothing but what is the first tenant's.
const FIRST: &str = "first-tenant";

/// An operation, with what stands in its path filled in.
struct Operation {
    name: String,
    method: String,
    target: String,
    /// It is about something that is the first tenant's.
    of_first: bool,
    /// It is opened by a GET and becomes a WebSocket.
    becomes_socket: bool,
}

struct Stage {
    daemon: Daemon,
    first: String,
    operations: Vec<Operation>,
}

/// A daemon with a sandbox of the first tenant, in which something runs.
fn stage() -> Stage {
    let daemon = with_admin(&Setup::default().argument("--enable-mock"));
    let made = create_key(&daemon.data_dir(), FIRST, FIRST, &[]);
    let first = key_of(&made).to_owned();
    // The label makes it a session of Urule's door as well.
    let spec = json!({ "labels": { "owner": FIRST, "urule.workspace_id": FIRST } }).to_string();
    let created = ask(&daemon, Some(&first), "POST", "/api/v1/sandboxes", &spec);
    assert_eq!(created.0, 201, "{}", created.1);
    let view: Value = serde_json::from_str(&created.1).expect("JSON");
    let sandbox = view["id"].as_str().expect("an id").to_owned();
    let target = format!("/api/v1/sandboxes/{sandbox}/execs");
    let ran = ask(&daemon, Some(&first), "POST", &target, r#"{"command":"echo first-tenant"}"#);
    let ran: Value = serde_json::from_str(&ran.1).expect("JSON");
    let exec = ran["exec_id"].as_str().expect("an id").to_owned();
    let described = ask(&daemon, None, "GET", "/openapi.json", "");
    let api: Value = serde_json::from_str(&described.1).expect("JSON");
    let operations = operations(&api, &sandbox, &exec);
    assert!(operations.len() > 10, "the description is nearly empty");
    Stage { daemon, first, operations }
}

fn operations(api: &Value, sandbox: &str, exec: &str) -> Vec<Operation> {
    let mut found = Vec::new();
    for (path, item) in api["paths"].as_object().expect("paths") {
        let sandboxes = path.contains("/sandboxes/") || path.contains("/sessions/");
        let target = path.replace("{exec_id}", exec).replace("{port}", "8000");
        let target = if sandboxes { target.replace("{id}", sandbox) } else { target };
        let target: String = match target.split_once('{') {
            // Whatever else can be named there: nobody has it.
            Some((before, rest)) => {
                format!("{before}nothing{}", rest.split_once('}').map_or("", |(_, after)| after))
            }
            None => target,
        };
        let methods = item.as_object().expect("operations").iter();
        for (method, described) in methods.filter(|(name, _)| is_method(name)) {
            let method = method.to_uppercase();
            let becomes_socket = described["responses"]["101"].is_object();
            let name = format!("{method} {path}");
            let of_first = target.contains(sandbox);
            found.push(Operation {
                name,
                method,
                target: target.clone(),
                of_first,
                becomes_socket,
            });
        }
    }
    found
}

fn is_method(name: &str) -> bool {
    ["get", "put", "post", "delete", "patch", "head", "options"].contains(&name)
}

/// The status and the body of one request.
fn ask(
    daemon: &Daemon,
    key: Option<&str>,
    method: &str,
    target: &str,
    body: &str,
) -> (u16, String) {
    let mut connection = Connection::open(daemon.address()).expect("it listens");
    if let Some(key) = key {
        connection = connection.with_header("authorization", &format!("Bearer {key}"));
    }
    let answer = connection.request(method, target, body);
    let answer = answer.unwrap_or_else(|e| panic!("{method} {target}: {e}\n{}", daemon.said()));
    (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
}

/// Tries an operation as its own clients would.
fn attempt(daemon: &Daemon, key: Option<&str>, operation: &Operation) -> (u16, String) {
    let Operation { method, target, .. } = operation;
    if !operation.becomes_socket {
        return ask(daemon, key, method, target, body_for(operation));
    }
    let mut connection = Connection::open(daemon.address())
        .expect("it listens")
        .with_header("connection", "upgrade")
        .with_header("upgrade", "websocket")
        .with_header("sec-websocket-version", "13")
        .with_header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    if let Some(key) = key {
        connection = connection.with_header("x-api-key", key);
    }
    let answer = connection.request(method, target, "").expect("an answer");
    (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
}

fn body_for(operation: &Operation) -> &'static str {
    if operation.method == "GET" || operation.method == "DELETE" { "" } else { "{}" }
}

#[test]
fn nothing_is_answered_without_a_good_credential_but_what_is_for_everybody() {
    skip_if!(crate::support::obstacle());
    let stage = stage();
    let (rest, last) = stage.first.split_at(stage.first.len() - 1);
    let wrong = format!("{rest}{}", if last == "0" { "1" } else { "0" });
    let mut public = BTreeSet::new();
    for operation in &stage.operations {
        for key in [None, Some(wrong.as_str()), Some("nonsense")] {
            let name = &operation.name;
            let (status, body) = attempt(&stage.daemon, key, operation);
            assert!(!body.contains(FIRST), "{name} told of the tenant: {body}");
            if status != 401 {
                public.insert(name.clone());
            } else {
                assert!(body.contains("\"unauthenticated\""), "{name}: {body}");
            }
        }
    }
    for target in ["/openapi.json", "/docs"] {
        let (status, _) = ask(&stage.daemon, None, "GET", target, "");
        assert_ne!(status, 401, "{target}");
    }
    for (method, target) in [("POST", "/healthz"), ("GET", "/nothing"), ("GET", "/healthz/")] {
        let (status, _) = ask(&stage.daemon, None, method, target, "");
        assert_eq!(status, 401, "{method} {target}: what is not there is nobody's business");
    }
    let listed: String = public.iter().map(|name| format!("{name}\n")).collect();
    if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
        std::fs::write(GOLDEN, &listed).expect("it can be written");
    }
    let golden = std::fs::read_to_string(GOLDEN).expect("the golden file");
    assert_eq!(listed, golden, "operations that are answered to everybody");
}

/// Whether an operation needs more than its path, of which an attempt gives nothing.
fn says_nothing(method: &str, name: &str) -> bool {
    method != "GET" || name.contains("/files") || name.ends_with("/diff")
}

#[test]
fn another_tenant_finds_nothing_of_the_first() {
    skip_if!(crate::support::obstacle());
    let stage = stage();
    let made = |organization, user, more: &[&str]| {
        key_of(&create_key(&stage.daemon.data_dir(), organization, user, more)).to_owned()
    };
    let others = [
        made("second", FIRST, &["--scope", "write,organization"]),
        made(FIRST, "second", &[]),
        made(FIRST, FIRST, &["--project", "second"]),
    ];
    for other in &others {
        for operation in &stage.operations {
            let Operation { name, method, of_first, .. } = operation;
            let (status, body) = attempt(&stage.daemon, Some(other), operation);
            assert!(status < 500 || status == 503, "{name} failed: {status} {body}");
            if *of_first {
                // A body or a query that says nothing may be refused before anybody looks for the sandbox.
                let refused = status == 404
                    || [400, 415, 422].contains(&status) && says_nothing(method, name);
                assert!(refused, "{name} was answered {status}: {body}");
                assert!(!body.contains("\"owner\""), "{name} told of the tenant: {body}");
            }
        }
        let (_, list) = ask(&stage.daemon, Some(other), "GET", "/api/v1/sandboxes", "");
        assert!(!list.contains("\"owner\":\"first-tenant\""), "{list}");
    }
    let own = ask(&stage.daemon, Some(&stage.first), "GET", "/api/v1/sandboxes", "");
    let own: Value = serde_json::from_str(&own.1).expect("JSON");
    let states: Vec<&Value> = own["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter(|view| view["labels"]["owner"] == FIRST)
        .map(|view| &view["state"])
        .collect();
    assert_eq!(states, [&json!("running")], "the others changed something");
}

#[test]
fn who_may_only_look_changes_nothing() {
    skip_if!(crate::support::obstacle());
    let stage = stage();
    let made = create_key(&stage.daemon.data_dir(), FIRST, FIRST, &["--scope", "read"]);
    let public = std::fs::read_to_string(GOLDEN).expect("the golden file");
    for operation in &stage.operations {
        let Operation { name, method, target, becomes_socket, .. } = operation;
        if public.lines().any(|line| line == name) {
            continue;
        }
        let (status, body) = attempt(&stage.daemon, Some(key_of(&made)), operation);
        let for_admins = ["/api/v1/keys", "/api/v1/audit", "/metrics"]
            .iter()
            .any(|prefix| target.starts_with(prefix));
        if method != "GET" || for_admins || *becomes_socket {
            assert_eq!(status, 403, "{name}: {body}");
            assert!(
                body.contains("\"forbidden\"") && body.contains("the scope "),
                "{name}: {body}"
            );
        } else {
            // Nothing listens on the port that was asked for.
            let looked = (status < 500 && ![401, 403].contains(&status)) || status == 502;
            assert!(looked, "{name} was answered {status}: {body}");
        }
    }
    let (_, view) = ask(&stage.daemon, Some(&stage.first), "GET", "/api/v1/sandboxes", "");
    assert!(view.contains("\"running\""), "{view}");
}
