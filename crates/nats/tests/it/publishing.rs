//! Every event arrives once and in order, whatever happens to the server.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::broker::{PREFIX, STREAM, World, stored};
use crate::server::Server;
use crate::stored::{self, api, assert_complete, client};
use crate::support::{eventually, eventually_some};
use crate::{PATIENCE, options, skip_without_server};
use futures_util::StreamExt;
use sandkeep_nats::{Assurance, LinkState, Stream, WhenMissing, subject};

/// Until everything that was recorded has arrived.
async fn arrived(world: &World) {
    eventually_some("all events have arrived", async || {
        let last = world.broker.last_event().get();
        let saved = std::fs::read_to_string(world.data().join("events/positions/nats"));
        saved.is_ok_and(|saved| saved.trim() == last.to_string()).then_some(())
    })
    .await;
}

/// Until so many messages are acknowledged.
async fn acknowledged(world: &World, count: u64) {
    eventually_some("much is acknowledged", async || {
        (world.metric("acknowledged_total").await >= count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_arrives_once_and_in_order_though_the_server_is_killed_under_load() {
    skip_without_server!();
    let mut server = Server::start();
    let world = World::new().await;
    let publishing = world.publish(options(&server), stored());
    for round in 1..=3 {
        // Much more than arrives until the server is killed, so that something is on its way then.
        world.emit_many(2_000, 25);
        acknowledged(&world, (round - 1) * 2_000 + 300).await;
        server.kill_9();
        world.emit_many(500, 25);
        server.run();
    }
    arrived(&world).await;
    let found = stored::stored(&server, STREAM).await;
    assert_eq!(found.len(), 7_500);
    assert_complete(&found, &world.events(), world.broker.instance());
    publishing.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_that_dies_is_continued_by_the_next_without_loss_or_repetition() {
    skip_without_server!();
    let server = Server::start();
    let world = World::new().await;
    for round in 1..=3 {
        let publishing = world.publish(options(&server), stored());
        world.emit_many(1_000, 10);
        acknowledged(&world, round * 600).await;
        // It is not stopped: its position is older than what it has sent.
        drop(publishing.link.clone());
        publishing.publisher.abort();
        publishing.link.close().await;
    }
    let publishing = world.publish(options(&server), stored());
    arrived(&world).await;
    let found = stored::stored(&server, STREAM).await;
    assert_complete(&found, &world.events(), world.broker.instance());
    publishing.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_without_a_server_is_published_when_there_is_one() {
    skip_without_server!();
    let mut server = Server::prepared("");
    let world = World::new().await;
    let publishing = world.publish(options(&server), stored());
    world.emit_many(300, 3);
    eventually("the problem is known", || publishing.link.report().problem.is_some()).await;
    assert_eq!(publishing.link.report().state, LinkState::Connecting);
    server.run();
    arrived(&world).await;
    assert_complete(
        &stored::stored(&server, STREAM).await,
        &world.events(),
        world.broker.instance(),
    );
    assert_eq!(publishing.link.report().problem, None, "it is over");
    assert_eq!(publishing.publisher.problem(), None);
    publishing.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subject_names_the_owner_and_the_kind_and_can_be_filtered() {
    skip_without_server!();
    let server = Server::start();
    let world = World::new().await;
    let filtered = format!("{PREFIX}.events.a%2Eb.default.key.>");
    let listener = client(&server).await;
    let mut messages = listener.subscribe(filtered).await.expect("a subscription");
    listener.flush().await.expect("it is known to the server");
    let publishing = world.publish(options(&server), Assurance::AtMostOnce);
    world.emit("other", "ann");
    world.emit("a.b", "ann");
    let message = tokio::time::timeout(PATIENCE, messages.next()).await;
    let message = message.expect("in time").expect("a message");
    assert_eq!(message.subject.as_str(), "sandkeep.events.a%2Eb.default.key.created");
    let headers = message.headers.expect("headers");
    let header = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(header("Sandkeep-Kind").as_deref(), Some("key.created"));
    assert_eq!(header("Sandkeep-Seq").as_deref(), Some("2"));
    assert_eq!(header("Content-Type").as_deref(), Some("application/cloudevents+json"));
    let event: Value = serde_json::from_slice(&message.payload).expect("JSON");
    assert_eq!(header("Nats-Msg-Id").as_deref(), event["id"].as_str());
    assert_eq!(event["organization"], "a.b");
    publishing.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_stream_is_said_and_events_wait_for_it() {
    skip_without_server!();
    let server = Server::start();
    let world = World::new().await;
    let waiting = Assurance::Acknowledged(Stream {
        name: STREAM.to_owned(),
        subjects: Vec::new(),
        max_bytes: 1,
        missing: WhenMissing::Wait,
    });
    let publishing = world.publish(options(&server), waiting);
    world.emit_many(50, 5);
    eventually("the problem is known", || {
        publishing.publisher.problem().is_some_and(|problem| problem.contains("create_stream"))
    })
    .await;
    let config = json!({ "name": STREAM, "subjects": [subject::of_all(PREFIX)] });
    let made = api(&client(&server).await, &format!("STREAM.CREATE.{STREAM}"), config).await;
    assert!(made["error"].is_null(), "{made}");
    arrived(&world).await;
    let found = stored::stored(&server, STREAM).await;
    assert_complete(&found, &world.events(), world.broker.instance());
    publishing.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_exists_is_left_as_it_is() {
    skip_without_server!();
    let server = Server::start();
    let world = World::new().await;
    let config = json!({
        "name": STREAM, "subjects": [subject::of_all(PREFIX), "more"], "max_msgs": 777,
    });
    let made = api(&client(&server).await, &format!("STREAM.CREATE.{STREAM}"), config).await;
    assert!(made["error"].is_null(), "{made}");
    let publishing = world.publish(options(&server), stored());
    world.emit_many(20, 2);
    arrived(&world).await;
    let config = &stored::info(&server, STREAM).await["config"];
    assert_eq!((&config["max_msgs"], &config["subjects"][1]), (&json!(777), &json!("more")));
    publishing.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_the_log_dropped_are_reported_as_a_gap() {
    skip_without_server!();
    let mut server = Server::prepared("");
    let world = World::new().await;
    let publishing = world.publish(options(&server), stored());
    world.emit("acme", "first");
    // The reader holds the beginning of the log already, so it begins anew behind what is removed.
    publishing.stop().await;
    let log = world.data().join("events");
    let files = || {
        let found = std::fs::read_dir(&log).expect("the log").map(|entry| entry.expect("a file"));
        let logs = found.map(|file| file.path());
        let logs = logs.filter(|path| path.extension().is_some_and(|end| end == "log"));
        let mut logs: Vec<_> = logs.collect();
        logs.sort();
        logs
    };
    while files().len() < 2 {
        world.emit_many(500, 20);
    }
    std::fs::remove_file(&files()[0]).expect("it is there");
    let publishing = world.publish(options(&server), stored());
    server.run();
    arrived(&world).await;
    let found = stored::stored(&server, STREAM).await;
    let (gaps, rest): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|stored| stored.subject == "sandkeep.events.gap");
    assert_eq!(gaps.len(), 1);
    assert_eq!(gaps[0].event["type"], "dev.sandkeep.gap");
    let kept = world.events();
    assert_eq!(gaps[0].event["data"]["oldest"], json!(kept[0].seq));
    assert_complete(&rest, &kept, world.broker.instance());
    assert_eq!(world.metric("gaps_total").await, 1);
    publishing.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_never_reads_delays_nobody() {
    skip_without_server!();
    let server = Server::start();
    let world = World::new().await;
    let mut lazy = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
    lazy.write_all(b"CONNECT {\"verbose\":false}\r\nSUB > 1\r\nPING\r\n").expect("it is sent");
    let mut greeting = [0; 4];
    lazy.read_exact(&mut greeting).expect("a greeting");
    let publishing = world.publish(options(&server), stored());
    world.emit_many(3_000, 20);
    arrived(&world).await;
    let found = stored::stored(&server, STREAM).await;
    assert_complete(&found, &world.events(), world.broker.instance());
    publishing.stop().await;
}
