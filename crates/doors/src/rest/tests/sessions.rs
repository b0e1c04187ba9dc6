use reqwest::Method;
use serde_json::{Value, json};

use super::harness::{Answer, Daemon};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

async fn allocate(daemon: &Daemon, workspace: &str) -> String {
    let body = json!({ "provider": "mock", "workspaceId": workspace, "runtimeProfile": "node-20" });
    let answer = daemon.post("/api/v1/sessions", body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    assert_eq!(keys(&answer.body), ["createdAt", "sessionId", "status"]);
    assert_eq!(answer.body["status"], "running");
    format!("/api/v1/sessions/{}", answer.body["sessionId"].as_str().expect("an id"))
}

#[tokio::test]
async fn a_session_is_allocated_looked_at_and_terminated_as_urule_does() {
    let daemon = Daemon::start().await;
    let session = allocate(&daemon, "ws-1").await;
    let status = daemon.get(&format!("{session}/status")).await;
    assert_eq!((status.status, &status.body["status"]), (200, &json!("running")));
    assert_eq!(keys(&status.body), ["createdAt", "sessionId", "status"]);
    assert_eq!(daemon.delete(&session).await.status, 204);
    assert_eq!(daemon.delete(&session).await.status, 404);
    assert_eq!(daemon.get(&format!("{session}/status")).await.status, 404);
}

#[tokio::test]
async fn a_missing_provider_is_the_default_and_an_unknown_one_is_refused() {
    let daemon = Daemon::start().await;
    let body = json!({ "workspaceId": "", "runtimeProfile": "anything at all", "more": [1] });
    assert_eq!(daemon.post("/api/v1/sessions", body).await.status, 201);
    let body = json!({ "workspaceId": "w", "runtimeProfile": "p", "provider": "xen" });
    let answer = daemon.post("/api/v1/sessions", body).await;
    assert_eq!((answer.status, &answer.body["code"]), (400, &json!("unknown_runtime")));
    assert!(answer.body["error"].as_str().is_some_and(|e| e.contains("mock")), "{}", answer.body);
}

#[tokio::test]
async fn an_invalid_body_is_refused_with_details() {
    let daemon = Daemon::start().await;
    for body in [
        json!({ "runtimeProfile": "p" }),
        json!({ "workspaceId": "w" }),
        json!({ "workspaceId": "w", "runtimeProfile": "" }),
        json!({ "workspaceId": 7, "runtimeProfile": "p" }),
        json!({ "workspaceId": "w", "runtimeProfile": "p", "env": { "A": 1 } }),
        json!([]),
    ] {
        let answer = daemon.post("/api/v1/sessions", body.clone()).await;
        assert_eq!(answer.status, 400, "{body} {}", answer.body);
        assert_eq!(answer.media_type, "application/problem+json");
        assert!(answer.body["error"].is_string(), "{}", answer.body);
        assert!(answer.body["details"][0]["message"].is_string(), "{}", answer.body);
        assert_eq!(answer.body["instance"], "/api/v1/sessions");
    }
}

#[tokio::test]
async fn only_sandboxes_with_a_workspace_are_sessions() {
    let daemon = Daemon::start().await;
    let session = allocate(&daemon, "ws-1").await;
    let sandbox = daemon.sandbox().await;
    let listed = daemon.get("/api/v1/sessions").await.body;
    let sessions = listed["sessions"].as_array().expect("sessions");
    assert_eq!(sessions.len(), 1, "{listed}");
    let expected = ("ws-1", "node-20", "mock");
    let of = |name: &str| sessions[0][name].as_str().expect("a string");
    assert_eq!((of("workspaceId"), of("runtimeProfile"), of("provider")), expected);
    // The other way round a session is a sandbox like any other.
    let as_sandbox = session.replace("sessions", "sandboxes");
    let view = daemon.get(&as_sandbox).await;
    assert_eq!(view.body["labels"]["urule.workspace_id"], "ws-1", "{}", view.body);
    let as_session = sandbox.replace("sandboxes", "sessions");
    for (method, path) in [
        (Method::GET, format!("{as_session}/status")),
        (Method::DELETE, as_session.clone()),
        (Method::POST, format!("{as_session}/tasks")),
    ] {
        let request = daemon.request(method, &path).json(&json!({ "command": "true" }));
        let answer = Answer::of(request).await;
        assert_eq!((answer.status, &answer.body["code"]), (404, &json!("not_found")), "{path}");
        assert!(answer.body["error"].is_string());
    }
    assert_eq!(daemon.get(&sandbox).await.status, 200, "it is still there");
}

#[tokio::test]
async fn a_task_answers_with_its_code_and_both_streams() {
    let daemon = Daemon::start().await;
    let session = allocate(&daemon, "ws-1").await;
    let tasks = format!("{session}/tasks");
    let task = json!({ "command": "echo out; echo err >&2; exit 7" });
    let answer = daemon.post(&tasks, task).await;
    assert_eq!(answer.body, json!({ "exitCode": 7, "stdout": "out\n", "stderr": "err\n" }));
    let late =
        daemon.post(&tasks, json!({ "command": "echo on; sleep 1000", "timeout": 0.05 })).await;
    let expected =
        json!({ "exitCode": 124, "stdout": "on\n", "stderr": "", "outcome": "timed_out" });
    assert_eq!((late.status, &late.body), (200, &expected));
    for bad in [
        json!({}),
        json!({ "command": 1 }),
        json!({ "command": "true", "timeout": 0 }),
        json!({ "command": "true", "timeout": -1 }),
        json!({ "command": "true", "timeout": 1e300 }),
        json!({ "command": "true", "workdir": "" }),
    ] {
        let answer = daemon.post(&tasks, bad.clone()).await;
        assert_eq!(answer.status, 400, "{bad} {}", answer.body);
        assert!(answer.body["details"].is_array());
    }
}

#[tokio::test]
async fn runtimes_are_told_in_both_spellings() {
    let daemon = Daemon::start().await;
    let answer = daemon.get("/api/v1/runtimes").await.body;
    let can = &answer["runtimes"][0]["capabilities"];
    for name in ["hasGpu", "hasBrowser", "hasNetwork", "isolation", "survives_daemon"] {
        assert!(can[name].is_boolean(), "{name}: {can}");
    }
    assert!(can["maxConcurrentTasks"].as_u64() > Some(0), "{can}");
}
