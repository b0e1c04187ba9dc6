use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::harness::Daemon;
use sandkeep_core::event::EventKind;

/// Generous: the machine may be busy.
const WAIT: Duration = Duration::from_secs(60);

/// A stream, read up to a separator at a time.
struct Followed {
    response: Response,
    pending: String,
    separator: &'static str,
}

impl Followed {
    async fn open(daemon: &Daemon, query: &str, accept: &str, last: Option<&str>) -> Self {
        let mut request =
            daemon.request(Method::GET, &format!("/api/v1/events?follow=true{query}"));
        request = request.header("accept", accept);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        let separator = if accept == "text/event-stream" { "\n\n" } else { "\n" };
        Self { response, pending: String::new(), separator }
    }

    /// `None`: the stream has ended.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some((frame, rest)) = self.pending.split_once(self.separator) {
                let frame = frame.to_owned();
                self.pending = rest.to_owned();
                return Some(frame);
            }
            let chunk = tokio::time::timeout(WAIT, self.response.chunk()).await;
            let chunk = chunk.expect("in time").expect("a whole stream")?;
            self.pending.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
    }

    async fn line(&mut self) -> Value {
        serde_json::from_str(&self.next().await.expect("a line")).expect("JSON")
    }
}

fn kinds(page: &Value) -> Vec<&str> {
    let items = page["items"].as_array().expect("items");
    items.iter().map(|item| item["kind"].as_str().expect("a kind")).collect()
}

#[tokio::test]
async fn events_are_listed_page_by_page_and_filtered() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    daemon.exec(&sandbox, json!({ "argv": ["echo"] })).await;
    let other = daemon.sandbox().await;
    assert_eq!(daemon.delete(&other).await.status, 204);
    let all = daemon.get("/api/v1/events").await.body;
    let expected =
        ["sandbox.created", "exec.started", "exec.ended", "sandbox.created", "sandbox.destroyed"];
    assert_eq!(kinds(&all), expected);
    assert_eq!(all["more"], false);
    let first = daemon.get("/api/v1/events?limit=2").await.body;
    assert_eq!((kinds(&first), &first["more"]), (expected[..2].to_vec(), &json!(true)));
    let rest = daemon.get(&format!("/api/v1/events?after={}", first["next"])).await.body;
    assert_eq!(kinds(&rest), expected[2..]);
    let ends = daemon.get("/api/v1/events?kind=sandbox.*&kind=exec.ended").await.body;
    assert_eq!(kinds(&ends), [expected[0], expected[2], expected[3], expected[4]]);
    let id = other.rsplit('/').next().expect("an id");
    let of_one = daemon.get(&format!("/api/v1/events?sandbox={id}")).await.body;
    assert_eq!(kinds(&of_one), expected[3..], "it is gone, and its events are not");
    let none = daemon.get("/api/v1/events?project=other").await.body;
    assert_eq!((kinds(&none), &none["next"]), (vec![], &all["next"]));
}

#[tokio::test]
async fn events_can_be_had_as_cloud_events() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let page = daemon.get("/api/v1/events?format=cloudevents").await.body;
    let event = &page["items"][0];
    assert_eq!(event["type"], "dev.sandkeep.sandbox.created", "{page}");
    assert!(sandbox.ends_with(event["subject"].as_str().expect("a subject")));
    assert_eq!(event["specversion"], "1.0");
}

#[tokio::test]
async fn what_cannot_be_listed_is_refused_by_name() {
    let daemon = Daemon::start().await;
    let unknown = daemon.get("/api/v1/events?kind=sandbox.exploded").await;
    assert_eq!(unknown.status, 400);
    let detail = unknown.body["detail"].as_str().expect("a detail");
    assert!(EventKind::NAMES.iter().all(|kind| detail.contains(kind)), "{detail}");
    assert_eq!(daemon.get("/api/v1/events?after=99").await.status, 400, "there is no such event");
}

#[tokio::test]
async fn a_follower_gets_what_it_missed_and_then_what_happens() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let mut lines = Followed::open(&daemon, "&after=0&kind=sandbox.*", "*/*", None).await;
    assert_eq!(lines.line().await["kind"], "sandbox.created");
    assert_eq!(lines.line().await, json!({ "kind": "heartbeat", "data": { "seq": 1 } }));
    daemon.exec(&sandbox, json!({ "argv": ["echo"] })).await;
    assert_eq!(daemon.delete(&sandbox).await.status, 204);
    let mut next = lines.line().await;
    // A heartbeat may come in between.
    while next["kind"] == "heartbeat" {
        next = lines.line().await;
    }
    assert_eq!((&next["kind"], &next["seq"]), (&json!("sandbox.destroyed"), &json!(4)));
}

#[tokio::test]
async fn a_follower_of_server_sent_events_continues_after_its_last_event_id() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    assert_eq!(daemon.delete(&sandbox).await.status, 204);
    let sse = "text/event-stream";
    let mut frames = Followed::open(&daemon, "&after=0", sse, None).await;
    let first = frames.next().await.expect("a frame");
    assert!(first.starts_with("event: sandbox.created\nid: 1\ndata: {"), "{first}");
    let mut frames = Followed::open(&daemon, "&after=0", sse, Some("1")).await;
    let second = frames.next().await.expect("a frame");
    assert!(second.starts_with("event: sandbox.destroyed\nid: 2\n"), "{second}");
}

#[tokio::test]
async fn a_follower_ends_with_the_daemon() {
    let daemon = Daemon::start().await;
    let mut lines = Followed::open(&daemon, "", "*/*", None).await;
    assert_eq!(lines.line().await["kind"], "heartbeat");
    tokio::time::timeout(WAIT, daemon.stop()).await.expect("it does not wait for followers");
}
