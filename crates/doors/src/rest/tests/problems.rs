use reqwest::Method;
use serde_json::{Value, json};

use super::harness::{Answer, Daemon};
use crate::kit::Refusal;
use crate::rest::problem::{Problem, status_of};
use sandkeep_broker::error::{AskError, Error, GatewayError};
use sandkeep_core::network::OverCeiling;
use sandkeep_core::{
    ExecId, SandboxId, ShellId, SnapshotId, SnapshotName, State, Verb,
    limits::{BODY_MAX_BYTES, GUEST_ANSWER},
    with_causes,
};
use sandkeep_guestlink::GuestError;
use sandkeep_runtime::RuntimeError;
use sandkeep_storage::{LayerId, LayerKey, StorageError};
use sandkeep_store::{Revision, StoreError};

fn assert_problem(answer: &Answer, status: u16, code: &str, detail: &str) {
    assert_eq!(answer.media_type, "application/problem+json", "{}", answer.body);
    let seen = (answer.status, answer.body["code"].as_str(), answer.body["status"].as_u64());
    assert_eq!(seen, (status, Some(code), Some(status.into())), "{}", answer.body);
    let text = answer.body["detail"].as_str().expect("a detail");
    assert!(text.contains(detail), "{text:?} does not say {detail:?}");
}

#[tokio::test]
async fn a_problem_says_what_to_do() {
    let daemon = Daemon::start().await;
    let id = SandboxId::random();
    let path = format!("/api/v1/sandboxes/{id}");
    let answer = daemon.get(&path).await;
    assert_eq!(
        answer.body,
        json!({
            "type": "urn:sandkeep:error:not_found",
            "title": "sandbox not found",
            "status": 404,
            "detail": format!("there is no sandbox {id}"),
            "code": "not_found",
            "remediation": "list sandboxes with GET /api/v1/sandboxes (sandkeep ls)",
            "retryable": false,
            "instance": path,
        })
    );
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_too() {
    let daemon = Daemon::start().await;
    assert_problem(&daemon.get("/nowhere").await, 404, "no_route", "/nowhere");
    let answer = daemon.get("/api/v1/sandboxes/not-an-id").await;
    assert_problem(&answer, 404, "not_found", "not-an-id");
    let answer = daemon.get("/api/v1/sandboxes/%ff%fe").await;
    assert_problem(&answer, 404, "not_found", "%ff%fe");
    let answer = daemon.delete("/api/v1/sandboxes").await;
    assert_problem(&answer, 405, "method_not_allowed", "DELETE");
    assert_eq!(answer.allow.as_deref(), Some("GET,HEAD,POST"));
}

#[tokio::test]
async fn a_wrong_body_is_refused_by_the_name_of_its_field() {
    let daemon = Daemon::start().await;
    let execs = format!("{}/execs", daemon.sandbox().await);
    let create = "/api/v1/sandboxes";
    for (path, body, code, detail) in [
        (create, json!({ "runtme": "mock" }), "malformed_body", "runtme"),
        (create, json!({ "resources": { "memory": 1 } }), "malformed_body", "memory"),
        (create, json!({ "resources": { "pids": "9" } }), "malformed_body", "resources.pids"),
        (create, json!({ "resources": { "pids": -9 } }), "malformed_body", "resources.pids"),
        (create, json!({ "resources": { "pids": 0 } }), "invalid_field", "resources.pids"),
        (create, json!({ "labels": { "a": 1 } }), "malformed_body", "labels.a"),
        (create, json!({ "runtime": "warp" }), "unknown_runtime", "warp"),
        (create, json!(["host"]), "malformed_body", "object"),
        (&execs, json!({}), "invalid_field", "command"),
        (&execs, json!({ "command": "true", "argv": ["true"] }), "invalid_field", "argv"),
        (&execs, json!({ "argv": [] }), "invalid_field", "argv"),
        (&execs, json!({ "argv": [1] }), "malformed_body", "argv[0]"),
        (
            &execs,
            json!({ "command": "cat", "stdin": "", "stdin_b64": "" }),
            "invalid_field",
            "stdin_b64",
        ),
        (&execs, json!({ "command": "cat", "stdin_b64": "?" }), "invalid_field", "stdin_b64"),
        (&execs, json!({ "command": "true", "timeout_ms": 0 }), "invalid_field", "timeout_ms"),
        (&execs, json!({ "command": "true", "timeout": 1 }), "malformed_body", "timeout"),
    ] {
        assert_problem(&daemon.post(path, body).await, 400, code, detail);
    }
}

#[tokio::test]
async fn bodies_are_json_whatever_curl_calls_them() {
    let daemon = Daemon::start().await;
    let post = |media: &'static str, body: &str| {
        let request = daemon.request(Method::POST, "/api/v1/sandboxes");
        Answer::of(request.header("content-type", media).body(body.to_owned()))
    };
    let body = r#"{"runtime":"mock"}"#;
    for media in
        ["application/x-www-form-urlencoded", "application/json; charset=utf-8", "text/plain"]
    {
        assert_eq!(post(media, body).await.status, 201, "{media}");
    }
    for media in ["multipart/form-data; boundary=x", "application/xml", "image/png"] {
        assert_problem(&post(media, body).await, 415, "not_json", media);
    }
    for body in ["{", "{} {}", "nonsense", "\u{0}", "[[[[", "\"x\""] {
        assert_problem(&post("application/json", body).await, 400, "malformed_body", "");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let daemon = Daemon::start().await;
    let execs = format!("{}/execs", daemon.sandbox().await);
    let large = "x".repeat(BODY_MAX_BYTES);
    let answer = daemon.post(&execs, json!({ "argv": ["cat"], "stdin": large })).await;
    assert_problem(&answer, 413, "body_too_large", "8388608");
}

#[tokio::test]
async fn a_wrong_query_is_refused() {
    let daemon = Daemon::start().await;
    let execs = format!("{}/execs", daemon.sandbox().await);
    for query in ["stream=maybe", "steam=true"] {
        let answer = daemon.post(&format!("{execs}?{query}"), json!({ "command": "true" })).await;
        assert_problem(&answer, 400, "invalid_query", "");
    }
}

#[tokio::test]
async fn an_exec_in_a_stopped_sandbox_says_how_to_start_it() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    daemon.post(&format!("{sandbox}/stop"), json!({})).await;
    let answer = daemon.post(&format!("{sandbox}/execs"), json!({ "command": "true" })).await;
    assert_problem(&answer, 409, "wrong_state", "stopped");
    let remedy = answer.body["remediation"].as_str().expect("a remedy");
    assert!(remedy.starts_with("start it first"), "{remedy}");
}

fn io() -> std::io::Error {
    std::io::Error::other("cause")
}

/// One of every error of the broker.
fn errors() -> Vec<Error> {
    let id = SandboxId::random;
    let layer = || format!("sha256:{:064x}", 7).parse::<LayerId>().expect("an id");
    let key = || LayerKey(layer());
    let known = || vec!["native".to_owned()];
    let (runtime, storage, what) = ("native", "local", "pause");
    let boxed = || Box::new(io()) as Box<dyn std::error::Error + Send + Sync>;
    vec![
        Error::InvalidField { field: "cwd", problem: "must be absolute".to_owned() },
        Error::UnknownRuntime { name: "x".to_owned(), known: known() },
        Error::RuntimeUnusable { name: "native".to_owned(), reason: "why".to_owned() },
        Error::UnknownTemplate { name: "x".to_owned(), known: known() },
        Error::TemplateNotFound { name: "x".to_owned() },
        Error::BaseNotFound { line: 1, name: "x".to_owned(), problem: "why".to_owned() },
        Error::TemplateInUse { name: "x".to_owned(), users: vec![id()] },
        Error::TemplateShared { name: "x".to_owned() },
        Error::SourceInvalid { problem: "why".to_owned() },
        Error::SourceForbidden { path: "/x".to_owned(), setting: "source_roots" },
        Error::SourceUnavailable { problem: "why".to_owned() },
        Error::UploadTooLarge { limit_bytes: 7 },
        Error::StorageLacks { what: "disk_mb", needs: "disk_quota", storage },
        Error::NoVolume { what: "a snapshot", runtime: "mock".to_owned() },
        Error::UnfitVolume { runtime: "mock", storage, kind: sandkeep_tree::RootKind::Overlay },
        Error::PoolFull { storage, percent: 95.0 },
        Error::NotFound { id: id() },
        Error::ExecNotFound { id: ExecId::random(), kept: 9, kept_bytes: 9 },
        Error::ExecEnded { id: ExecId::random() },
        Error::StdinClosed { id: ExecId::random() },
        Error::NoTerminal { id: ExecId::random() },
        Error::Journal { source: io() },
        Error::File {
            kind: toolbox::FailureKind::NotFound,
            path: Some("/x".to_owned()),
            message: "it is not there".to_owned(),
        },
        Error::ToolboxBroke { problem: "why".to_owned() },
        Error::WrongState { id: id(), state: State::Stopped, verb: Verb::Exec, helps: None },
        Error::Busy { id: id(), verb: Verb::Stop, under_way: Verb::Start },
        Error::ExecsInFlight { id: id(), verb: Verb::Rollback, execs: vec![ExecId::random()] },
        Error::SnapshotNotFound { id: id(), name: SnapshotName::turns() },
        Error::SnapshotExists { id: id(), name: SnapshotName::turns() },
        Error::SnapshotsFull { id: id(), limit: 9 },
        Error::LimitReached { what: "sandboxes", limit: 9 },
        Error::SandboxFailed { id: id(), reason: "why".to_owned() },
        Error::DataDirInUse { path: "/d".to_owned(), pid: Some(7) },
        Error::DataDir { path: "/d".to_owned(), source: io() },
        Error::OverCeiling(OverCeiling::NoNetwork),
        Error::Gateway { id: id(), source: GatewayError::Sockets(io()) },
        Error::Secrets { problem: "why".to_owned() },
        Error::NetworkAsk(AskError::Unknown(1)),
        Error::NetworkAsk(AskError::DoesNotAsk),
        Error::NetworkAsk(AskError::TooMany),
        Error::ShuttingDown,
        StoreError::Exists { current: Revision(1) }.into(),
        StoreError::Conflict { current: None }.into(),
        StoreError::Compacted { oldest: Revision(1) }.into(),
        StoreError::TooLarge { size: 2, max: 1 }.into(),
        StoreError::Unavailable(boxed()).into(),
        StorageError::Unsupported { storage, what }.into(),
        StorageError::NotFound { id: id() }.into(),
        StorageError::Exists { id: id() }.into(),
        StorageError::SnapshotNotFound { id: id(), snapshot: SnapshotId::random() }.into(),
        StorageError::SnapshotExists { id: id(), snapshot: SnapshotId::random() }.into(),
        StorageError::Full { storage, what: "write".to_owned(), source: io() }.into(),
        StorageError::LayerMissing { layer: layer() }.into(),
        StorageError::LayerInUse { layer: key(), id: id() }.into(),
        StorageError::TooManyLayers { count: 129, max: 128 }.into(),
        StorageError::Unusable { storage, reason: "why".to_owned() }.into(),
        StorageError::Io { storage, what: "write".to_owned(), source: io() }.into(),
        RuntimeError::Unsupported { runtime, what }.into(),
        RuntimeError::NoNetwork { runtime, reason: "why".to_owned() }.into(),
        RuntimeError::NotFound { runtime, id: id() }.into(),
        RuntimeError::NotRunning { id: id() }.into(),
        RuntimeError::Io { runtime, what: "start".to_owned(), source: io() }.into(),
        GuestError::Unreachable(io()).into(),
        GuestError::TimedOut { after: GUEST_ANSWER }.into(),
        GuestError::Version { oldest: 1, newest: 2 }.into(),
        GuestError::Protocol("why".to_owned()).into(),
        GuestError::Refused { reason: "why".to_owned() }.into(),
        GuestError::Unsupported { what }.into(),
        GuestError::Unprepared { what, source: io() }.into(),
        GuestError::PortClosed { port: 80 }.into(),
        GuestError::ShellNotFound { id: ShellId::random() }.into(),
        GuestError::ShellEnded { id: ShellId::random() }.into(),
        GuestError::ShellQueueFull { id: ShellId::random(), limit: 64 }.into(),
        GuestError::TooManyShells { limit: 32 }.into(),
    ]
}

#[test]
fn every_error_is_a_whole_problem() {
    for error in errors() {
        let (code, detail) = (error.code(), with_causes(&error));
        let problem = Problem::from(&Refusal::from(error));
        assert_eq!(
            (problem.status, problem.code.as_str()),
            (status_of(code).as_u16(), code.as_str())
        );
        assert_eq!(problem.detail, detail);
        let value: Value = serde_json::to_value(&problem).expect("JSON");
        for field in ["type", "title", "detail", "code", "remediation"] {
            let text = value[field].as_str().expect("text");
            assert!(!text.is_empty(), "{code:?} has no {field}");
            assert!(!text.ends_with('.'), "{code:?}: {field} ends with a full stop");
        }
    }
}
