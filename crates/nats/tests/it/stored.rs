//! What a stream holds, read by a consumer of JetStream's own.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::PATIENCE;
use crate::server::Server;
use sandkeep_core::event::Event;
use sandkeep_nats::async_nats::{self, Client};

/// A message of a stream.
#[derive(Debug)]
pub struct Stored {
    pub subject: String,
    pub id: String,
    pub event: Value,
}

impl Stored {
    pub fn seq(&self) -> u64 {
        self.event["sequence"].as_str().expect("a sequence").parse().expect("a number")
    }
}

pub async fn client(server: &Server) -> Client {
    async_nats::connect(server.url()).await.expect("a connection")
}

pub async fn api(client: &Client, subject: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer =
        client.request(format!("$JS.API.{subject}"), body.into()).await.expect("an answer");
    serde_json::from_slice(&answer.payload).expect("JSON")
}

pub async fn info(server: &Server, stream: &str) -> Value {
    api(&client(server).await, &format!("STREAM.INFO.{stream}"), Value::Null).await
}

/// All messages of a stream, in its order.
pub async fn stored(server: &Server, stream: &str) -> Vec<Stored> {
    let client = client(server).await;
    let info = api(&client, &format!("STREAM.INFO.{stream}"), Value::Null).await;
    let count = info["state"]["messages"].as_u64().expect("a stream");
    let inbox = client.new_inbox();
    let mut messages = client.subscribe(inbox.clone()).await.expect("a subscription");
    let config = json!({ "deliver_subject": inbox, "ack_policy": "none", "deliver_policy": "all" });
    let wanted = json!({ "stream_name": stream, "config": config });
    let made = api(&client, &format!("CONSUMER.CREATE.{stream}"), wanted).await;
    assert!(made["error"].is_null(), "{made}");
    let mut found = Vec::new();
    while (found.len() as u64) < count {
        let next = tokio::time::timeout(PATIENCE, messages.next()).await;
        let message = next.expect("a message in time").expect("a message");
        let headers = message.headers.expect("headers");
        found.push(Stored {
            subject: message.subject.to_string(),
            id: headers.get("Nats-Msg-Id").expect("an id").as_str().to_owned(),
            event: serde_json::from_slice(&message.payload).expect("a CloudEvent"),
        });
    }
    found
}

/// Each event of the log is there once, and those of one user are in order.
pub fn assert_complete(stored: &[Stored], events: &[Event], instance: &str) {
    let ids: BTreeSet<&str> = stored.iter().map(|stored| stored.id.as_str()).collect();
    assert_eq!(ids.len(), stored.len(), "each id is there once");
    let expected: BTreeSet<String> =
        events.iter().map(|event| format!("{instance}-{}", event.seq)).collect();
    let missing: Vec<&String> =
        expected.iter().filter(|id| !ids.contains(id.as_str())).take(5).collect();
    assert!(missing.is_empty(), "missing: {missing:?} and maybe more");
    assert_eq!(ids.len(), expected.len(), "nothing else is there");
    let mut lanes: BTreeMap<&str, u64> = BTreeMap::new();
    for message in stored {
        let user = message.event["user"].as_str().expect("a user");
        let last = lanes.entry(user).or_default();
        assert!(*last < message.seq(), "{user}: {} after {last}", message.seq());
        *last = message.seq();
    }
}
