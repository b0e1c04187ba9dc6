use reqwest::Method;
use serde_json::{Value, json};

use super::harness::{Answer, Daemon};

#[tokio::test]
async fn a_sandbox_is_created_shown_listed_stopped_started_and_destroyed() {
    let daemon = Daemon::start().await;
    let labels = json!({ "job": "7" });
    let body = json!({ "runtime": "mock", "labels": labels });
    let created = daemon.post("/api/v1/sandboxes", body).await;
    assert_eq!(created.status, 201, "{}", created.body);
    assert_eq!((&created.body["state"], &created.body["labels"]), (&json!("running"), &labels));
    let path = format!("/api/v1/sandboxes/{}", created.body["id"].as_str().expect("an id"));

    let shown = daemon.get(&path).await;
    assert_eq!((shown.status, &shown.body["id"]), (200, &created.body["id"]));
    let listed = daemon.get("/api/v1/sandboxes").await;
    assert_eq!(listed.body["items"].as_array().expect("items").len(), 1);
    assert_eq!(listed.body["items"][0]["id"], created.body["id"]);

    let stopped = daemon.post(&format!("{path}/stop"), json!({})).await;
    assert_eq!((stopped.status, &stopped.body["state"]), (200, &json!("stopped")));
    let started = Answer::of(daemon.request(Method::POST, &format!("{path}/start"))).await;
    assert_eq!((started.status, &started.body["state"]), (200, &json!("running")));

    let destroyed = daemon.delete(&path).await;
    assert_eq!((destroyed.status, &destroyed.body), (204, &Value::Null));
    assert_eq!(daemon.delete(&path).await.status, 404);
    assert_eq!(daemon.get(&path).await.status, 404);
    assert_eq!(daemon.get("/api/v1/sandboxes").await.body, json!({ "items": [] }));
}

#[tokio::test]
async fn values_of_environment_variables_are_never_shown() {
    let daemon = Daemon::start().await;
    let body = json!({ "runtime": "mock", "env": { "TOKEN": "open-sesame" } });
    let created = daemon.post("/api/v1/sandboxes", body).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let listed = daemon.get("/api/v1/sandboxes").await;
    for answer in [created, listed] {
        assert!(!answer.body.to_string().contains("open-sesame"), "{}", answer.body);
    }
}

#[tokio::test]
async fn runtimes_say_what_they_can() {
    let daemon = Daemon::start().await;
    let answer = daemon.get("/api/v1/runtimes").await;
    assert_eq!(answer.status, 200);
    let mock = &answer.body["runtimes"][0];
    assert_eq!(
        (&mock["name"], &mock["usable"], &mock["default"], &mock["capabilities"]["isolation"]),
        (&json!("mock"), &json!(true), &json!(true), &json!(false))
    );
}

#[tokio::test]
async fn health_is_told_with_the_version() {
    let daemon = Daemon::start().await;
    let answer = daemon.get("/healthz").await;
    let expected = json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") });
    assert_eq!((answer.status, answer.body), (200, expected));
    assert_eq!(answer.media_type, "application/json");
}

#[tokio::test]
async fn a_daemon_asked_to_stop_ends_although_a_client_keeps_its_connection() {
    let daemon = Daemon::start().await;
    assert_eq!(daemon.get("/healthz").await.status, 200);
    daemon.stop().await;
}
