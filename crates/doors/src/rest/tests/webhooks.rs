use reqwest::Method;
use serde_json::{Value, json};

use super::harness::{Answer, Daemon};
use super::receiver::{Act, Message, Receiver};
use sandkeep_core::limits;

async fn register(daemon: &Daemon, body: Value) -> (String, String) {
    let answer = daemon.post("/api/v1/webhooks", body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let text = |name: &str| answer.body[name].as_str().expect(name).to_owned();
    (format!("/api/v1/webhooks/{}", text("id")), text("secret"))
}

async fn destroyed(daemon: &Daemon) {
    let sandbox = daemon.sandbox().await;
    assert_eq!(daemon.delete(&sandbox).await.status, 204);
}

/// Without repetitions.
fn types(messages: &[Message]) -> Vec<&str> {
    let mut ids = Vec::new();
    let mut types = Vec::new();
    for message in messages {
        if !ids.contains(&&message.id) {
            ids.push(&message.id);
            types.push(message.body["type"].as_str().expect("a type"));
        }
    }
    types
}

#[tokio::test]
async fn a_webhook_gets_every_event_in_order_whatever_its_receiver_does() {
    let daemon = Daemon::start().await;
    let receiver = Receiver::start(&[Act::Answer(500), Act::Redirect, Act::BreakOff]).await;
    let body = json!({ "url": receiver.url, "kinds": ["sandbox.*"] });
    let (webhook, secret) = register(&daemon, body).await;
    destroyed(&daemon).await;
    let messages = receiver.wait_for("sandbox.destroyed").await;
    assert_eq!(
        types(&messages),
        ["dev.sandkeep.sandbox.created", "dev.sandkeep.sandbox.destroyed"]
    );
    messages.iter().for_each(|message| message.verify(&secret));
    let first = messages.iter().filter(|message| message.id == messages[0].id).count();
    assert_eq!(first, 4, "three failures, each delivered again: {messages:#?}");
    let shown = daemon.get(&webhook).await.body;
    assert_eq!((&shown["state"], &shown["failures"]), (&json!("enabled"), &json!(0)));
}

#[tokio::test]
async fn a_receiver_that_never_answers_delays_nobody_else_and_its_error_is_shown() {
    let daemon = Daemon::start().await;
    let hung = Receiver::start(&[Act::Hang; 100]).await;
    let fine = Receiver::start(&[]).await;
    let (webhook, _) = register(&daemon, json!({ "url": hung.url })).await;
    register(&daemon, json!({ "url": fine.url })).await;
    destroyed(&daemon).await;
    fine.wait_for("sandbox.destroyed").await;
    // Its first message comes again after it has run out of time.
    hung.wait("second attempt", |all| all.len() >= 2).await;
    let shown = daemon.get(&webhook).await.body;
    assert_eq!(shown["failures"], 1, "{shown}");
    assert!(shown["failing_since"].is_string(), "{shown}");
    let error = shown["last_error"].as_str().expect("an error");
    assert!(error.contains("did not answer within 15 s"), "{error}");
}

#[tokio::test]
async fn a_receiver_that_is_gone_disables_its_webhook_until_it_is_enabled() {
    let daemon = Daemon::start().await;
    let receiver = Receiver::start(&[Act::Answer(410)]).await;
    let (webhook, _) =
        register(&daemon, json!({ "url": receiver.url, "kinds": ["sandbox.*"] })).await;
    let watcher = Receiver::start(&[]).await;
    register(&daemon, json!({ "url": watcher.url, "kinds": ["webhook.*"] })).await;
    destroyed(&daemon).await;
    let told = watcher.wait_for("webhook.disabled").await;
    let reason = told.last().expect("a message").body["data"]["reason"].clone();
    assert_eq!(reason, "the receiver answered 410 Gone");
    assert_eq!(receiver.messages().len(), 1, "nothing is delivered to it any more");
    let enabled = daemon.post(&format!("{webhook}/enable"), json!({})).await;
    assert_eq!((enabled.status, &enabled.body["state"]), (200, &json!("enabled")));
    let messages = receiver.wait_for("sandbox.destroyed").await;
    assert_eq!(messages[0].id, messages[1].id, "it continues with what was not delivered");
    assert_eq!(daemon.delete(&webhook).await.status, 204);
    watcher.wait_for("webhook.deleted").await;
    assert_eq!(daemon.get(&webhook).await.status, 404);
}

#[tokio::test]
async fn events_can_be_delivered_again() {
    let daemon = Daemon::start().await;
    let receiver = Receiver::start(&[]).await;
    let (webhook, secret) =
        register(&daemon, json!({ "url": receiver.url, "kinds": ["sandbox.*"] })).await;
    destroyed(&daemon).await;
    let before = receiver.wait_for("sandbox.destroyed").await;
    let replayed = daemon.post(&format!("{webhook}/replay"), json!({ "after": 0 })).await;
    assert_eq!(replayed.status, 200, "{}", replayed.body);
    let all = receiver.wait("replay", |all| all.len() >= 2 * before.len()).await;
    all.iter().for_each(|message| message.verify(&secret));
    assert_eq!(all[2].id, all[0].id);
    let future = daemon.post(&format!("{webhook}/replay"), json!({ "after": 1_000_000 })).await;
    assert_eq!(future.status, 400, "{}", future.body);
}

#[tokio::test]
async fn a_test_message_says_what_the_receiver_did_with_it() {
    let daemon = Daemon::start().await;
    let receiver = Receiver::start(&[Act::Answer(200), Act::Answer(503)]).await;
    let (webhook, secret) =
        register(&daemon, json!({ "url": receiver.url, "kinds": ["exec.*"] })).await;
    let test = format!("{webhook}/test");
    let delivered = daemon.post(&test, json!({})).await.body;
    assert_eq!(delivered, json!({ "delivered": true }));
    let refused = daemon.post(&test, json!({})).await.body;
    assert_eq!(refused["delivered"], false);
    assert!(refused["error"].as_str().is_some_and(|e| e.contains("503")), "{refused}");
    let messages = receiver.messages();
    messages.iter().for_each(|message| message.verify(&secret));
    assert_eq!(types(&messages), ["dev.sandkeep.webhook.test"; 2]);
}

#[tokio::test]
async fn a_secret_is_shown_once_and_a_wrong_request_is_refused_by_its_field() {
    let daemon = Daemon::start().await;
    let receiver = Receiver::start(&[]).await;
    let own = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let (webhook, secret) = register(&daemon, json!({ "url": receiver.url, "secret": own })).await;
    assert_eq!(secret, own);
    let (_, made) = register(&daemon, json!({ "url": receiver.url })).await;
    for path in [&webhook, "/api/v1/webhooks", "/api/v1/events"] {
        let shown = daemon.get(path).await.body.to_string();
        assert!(!shown.contains(own) && !shown.contains(&made), "{shown}");
    }
    for (field, value) in [
        ("url", json!("ftp://example.com/")),
        ("url", json!("http://example.com/")),
        ("url", json!("https://10.1.2.3/")),
        ("url", json!("https://169.254.169.254/latest")),
        ("url", json!(format!("{}{}", receiver.url, "x".repeat(3000)))),
        ("secret", json!("short")),
        ("kinds", json!(["sandbox.exploded"])),
        ("events", json!([])),
    ] {
        let mut body = json!({ "url": receiver.url });
        body[field] = value.clone();
        let answer = daemon.post("/api/v1/webhooks", body).await;
        assert_eq!(answer.status, 400, "{field} {value} {}", answer.body);
        let detail = answer.body["detail"].as_str().expect("a detail");
        assert!(detail.contains(field), "{detail}");
    }
}

#[tokio::test]
async fn a_user_has_a_bounded_number_of_webhooks() {
    let daemon = Daemon::start().await;
    let receiver = Receiver::start(&[]).await;
    let mut last = String::new();
    for _ in 0..limits::WEBHOOKS_PER_USER_MAX {
        last = register(&daemon, json!({ "url": receiver.url, "kinds": ["key.*"] })).await.0;
    }
    let body = json!({ "url": receiver.url });
    assert_eq!(daemon.post("/api/v1/webhooks", body.clone()).await.status, 429);
    assert_eq!(daemon.delete(&last).await.status, 204);
    assert_eq!(daemon.post("/api/v1/webhooks", body).await.status, 201);
    let unknown = Answer::of(daemon.request(Method::GET, "/api/v1/webhooks/x")).await;
    assert_eq!((unknown.status, &unknown.body["code"]), (404, &json!("webhook_not_found")));
}
