use reqwest::Method;
use serde_json::json;

use super::harness::{Answer, Daemon};

async fn metrics(daemon: &Daemon) -> String {
    let answer = daemon.request(Method::GET, "/metrics").send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let media = answer.headers()["content-type"].to_str().expect("ASCII").to_owned();
    assert!(media.starts_with("application/openmetrics-text"), "{media}");
    answer.text().await.expect("text")
}

fn assert_line(page: &str, line: &str) {
    assert!(page.lines().any(|l| l == line), "no line {line}\n{page}");
}

#[tokio::test]
async fn verbs_and_requests_are_counted_by_runtime_code_and_route() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    daemon.exec(&sandbox, json!({ "command": "true" })).await;
    assert_eq!(daemon.post("/api/v1/sandboxes", json!({ "runtime": "xen" })).await.status, 400);
    assert_eq!(daemon.post(&format!("{sandbox}/stop"), json!({})).await.status, 200);
    assert_eq!(
        daemon.post(&format!("{sandbox}/execs"), json!({"command": "true"})).await.status,
        409
    );
    assert_eq!(daemon.get("/nowhere/at/all").await.status, 404);
    let page = metrics(&daemon).await;
    for line in [
        r#"sandkeep_verbs_total{verb="create",runtime="mock",code="ok"} 1"#,
        r#"sandkeep_verbs_total{verb="create",runtime="unknown",code="unknown_runtime"} 1"#,
        r#"sandkeep_verbs_total{verb="exec",runtime="mock",code="ok"} 1"#,
        r#"sandkeep_verbs_total{verb="exec",runtime="mock",code="wrong_state"} 1"#,
        r#"sandkeep_verb_duration_seconds_count{verb="stop",runtime="mock"} 1"#,
        r#"sandkeep_http_requests_total{method="POST",route="/api/v1/sandboxes/{id}/execs",status="409"} 1"#,
        r#"sandkeep_http_requests_total{method="GET",route="unmatched",status="404"} 1"#,
        r#"sandkeep_sandboxes{runtime="mock",state="stopped"} 1"#,
        r#"sandkeep_sandboxes{runtime="mock",state="running"} 0"#,
        "sandkeep_execs_active 0",
        "sandkeep_ready 1",
        "# EOF",
    ] {
        assert_line(&page, line);
    }
    assert!(!page.contains(sandbox.as_str()), "a path of a caller is in it");
}

#[tokio::test]
async fn readyz_tells_the_local_user_everything() {
    let daemon = Daemon::start().await;
    daemon.sandbox().await;
    let answer = daemon.get("/readyz").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.body["status"], "ready");
    assert_eq!(answer.body["sandboxes"]["by_state"]["running"], 1);
    assert_eq!(answer.body["active_execs"], 0);
    assert_eq!(answer.body["errors"], json!([]));
    assert!(answer.body["pool"]["total_bytes"].as_u64() > Some(0), "{}", answer.body);
    assert!(answer.body["uptime_secs"].is_u64());
}

#[tokio::test]
async fn every_answer_has_a_correlation_id_and_a_usable_one_is_the_callers() {
    let daemon = Daemon::start().await;
    let id_of = |path: &str, sent: &str| {
        let request = daemon.request(Method::GET, path).header("x-correlation-id", sent);
        async {
            let answer = request.send().await.expect("an answer");
            answer.headers()["x-correlation-id"].to_str().expect("ASCII").to_owned()
        }
    };
    for path in ["/healthz", "/api/v1/sandboxes", "/nowhere", "/openapi.json"] {
        assert_eq!(id_of(path, "turn-42/retry:1").await, "turn-42/retry:1", "{path}");
        for unusable in ["", "two words", &"x".repeat(129)] {
            let minted = id_of(path, unusable).await;
            assert!(minted != unusable && !minted.is_empty(), "{path}: {minted:?}");
        }
    }
    let first = id_of("/healthz", "").await;
    assert_ne!(first, id_of("/healthz", "").await);
    let refused = daemon.request(Method::GET, "/healthz").header("host", "evil.example");
    let refused = refused.header("x-correlation-id", "mine").send().await.expect("an answer");
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["x-correlation-id"]),
        (403, &"mine".parse().expect("a value"))
    );
}

#[tokio::test]
async fn a_wrong_method_is_counted_under_its_route() {
    let daemon = Daemon::start().await;
    let answer = Answer::of(daemon.request(Method::PUT, "/healthz")).await;
    assert_eq!(answer.status, 405);
    let line = r#"sandkeep_http_requests_total{method="PUT",route="/healthz",status="405"} 1"#;
    assert_line(&metrics(&daemon).await, line);
}
