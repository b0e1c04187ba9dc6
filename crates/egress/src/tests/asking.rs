//! The owner decides, audit lets pass, and policies change while connections are open.

use std::time::Duration;

use sandkeep_core::network::{Choice, DecisionKind, NetworkVerdict, OnDeny};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::server::{echo, plain};
use super::world::*;
use crate::{AskError, Times};

fn asking() -> Setup {
    let hosts = [("a.example", 0), ("b.example", 0), ("no.example", 0)];
    setup(json!({ "allow": [], "deny": ["no.example"], "on_deny": "ask" }), &hosts)
}

/// Waits until so many connections wait for one request.
async fn pending(world: &World, waiting: u32) {
    let all = || world.attachment.requests().iter().map(|request| request.waiting).sum::<u32>();
    until("they wait", || all() == waiting).await;
}

async fn said(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(bytes).await?;
    let mut back = vec![0; bytes.len()];
    timeout(SOON, stream.read_exact(&mut back)).await.expect("it does not hang")?;
    Ok(back)
}

#[tokio::test]
async fn a_connection_waits_until_the_owner_decides() {
    if !is_root("a_connection_waits_until_the_owner_decides") {
        return;
    }
    let world = asking().build();
    let server = echo(0, 7000, "").await;
    let mut first = world.to("a.example", 7000).await;
    let mut second = world.to("a.example", 7000).await;
    pending(&world, 2).await;
    let request = world.attachment.request("a.example", 7000, "to read\u{7} the docs");
    let request = request.expect("it waits");
    assert_eq!(request.why.as_deref(), Some("to read the docs"));
    assert_eq!(world.attachment.requests()[0].why, request.why);
    assert_eq!(world.log.asked.lock().expect("a log").len(), 1, "one request for both");
    assert_eq!(server.connections(), 0, "nothing leaves before");
    assert_eq!(world.attachment.decide(request.id, Choice::Once), Ok(None));
    for stream in [&mut first, &mut second] {
        assert_eq!(said(stream, b"hello").await.expect("it passes"), b"hello");
    }
    // Once is once.
    let mut third = world.to("a.example", 7000).await;
    pending(&world, 1).await;
    let id = world.attachment.requests()[0].id;
    assert_eq!(world.attachment.decide(id, Choice::Refuse), Ok(None));
    assert!(said(&mut third, b"hello").await.is_err());
    assert_eq!(exchange(world.to("a.example", 7000).await, b"x").await, None, "refused at once");
    let again = world.attachment.request("a.example", 7000, "please");
    assert_eq!(again, Err(AskError::Refused("a.example".to_owned())));
    assert_eq!(world.attachment.decide(id, Choice::Once), Err(AskError::Unknown(id)));
    // Always is an entry.
    let mut fourth = world.to("b.example", 7000).await;
    pending(&world, 1).await;
    let id = world.attachment.requests()[0].id;
    let entry = world.attachment.decide(id, Choice::Always).expect("decided").expect("an entry");
    assert_eq!(entry.to_string(), "b.example:7000");
    assert_eq!(said(&mut fourth, b"hello").await.expect("it passes"), b"hello");
    let mut fifth = world.to("b.example", 7000).await;
    assert_eq!(said(&mut fifth, b"hello").await.expect("it passes"), b"hello");
    assert!(world.attachment.request("b.example", 7000, "").is_err());
}

#[tokio::test]
async fn nobody_is_asked_for_what_is_denied_or_over_the_ceiling() {
    if !is_root("nobody_is_asked_for_what_is_denied_or_over_the_ceiling") {
        return;
    }
    let ceiling = json!({ "allow": ["*.example"], "deny": ["never.example"] });
    let world = Setup { ceiling: Some(ceiling), ..asking() }.build();
    for name in ["no.example", "never.example", "a.test"] {
        assert_eq!(exchange(world.to(name, 443).await, b"x").await, None, "{name}");
        let asked = world.attachment.request(name, 443, "please");
        assert!(matches!(asked, Err(AskError::Denied { .. })), "{name}: {asked:?}");
    }
    assert_eq!(world.attachment.requests(), []);
    let metadata = world.attachment.request("0xa9fea9fe", 80, "");
    assert!(matches!(metadata, Err(AskError::NotAHost(_))), "{metadata:?}");
    world.attachment.replace(rules(json!({ "allow": ["a.example"] })));
    assert_eq!(world.attachment.request("b.example", 443, ""), Err(AskError::DoesNotAsk));
}

#[tokio::test]
async fn requests_are_bounded_and_end_by_themselves() {
    if !is_root("requests_are_bounded_and_end_by_themselves") {
        return;
    }
    let times = Times { ask: Duration::from_millis(300), ..Times::default() };
    let world = Setup { times, ..asking() }.build();
    let mut waiting = Vec::new();
    for number in 0..40 {
        waiting.push(world.to(&format!("n{number}.example"), 443).await);
    }
    for stream in &mut waiting {
        assert!(said(stream, b"x").await.is_err());
    }
    assert_eq!(world.attachment.requests(), []);
    let asked = world.log.asked.lock().expect("a log").len();
    assert!((1..=16).contains(&asked), "{asked} were asked");
    world.logged(DecisionKind::Connection, NetworkVerdict::Denied, "did not decide in time").await;
    world.logged(DecisionKind::Connection, NetworkVerdict::Denied, "too many requests").await;
}

#[tokio::test]
async fn audit_lets_public_destinations_pass_and_suggests_a_policy() {
    if !is_root("audit_lets_public_destinations_pass_and_suggests_a_policy") {
        return;
    }
    let policy =
        json!({ "allow": ["*.example", "python"], "deny": ["no.example"], "on_deny": "audit" });
    let hosts = [("a.example", 0), ("no.example", 0), ("private.test", 0)];
    let world = setup(policy, &hosts).build();
    let _server = plain(0, 80).await;
    let get = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let a = exchange(world.to("a.example", 80).await, get("a.example").as_bytes()).await;
    assert!(a.expect("an answer").starts_with("HTTP/1.1 200"));
    let no = exchange(world.to("no.example", 80).await, get("no.example").as_bytes()).await;
    assert!(no.expect("an answer").starts_with("HTTP/1.1 403"), "deny wins");
    // It is audited, and not dialed: its address is not public, although the admin allows the range.
    let private =
        exchange(world.to("private.test", 80).await, get("private.test").as_bytes()).await;
    assert!(private.expect("an answer").starts_with("HTTP/1.1 502"));
    let line = world.logged(DecisionKind::Connection, NetworkVerdict::Audited, "").await;
    assert_eq!(line.name.as_deref(), Some("private.test"));
    let suggested = world.attachment.suggest();
    let entries: Vec<_> = suggested.allow.iter().map(ToString::to_string).collect();
    assert_eq!(entries, ["*.example", "private.test"]);
    assert_eq!((suggested.on_deny, suggested.deny.len()), (OnDeny::Refuse, 1));
}

#[tokio::test]
async fn a_change_of_the_policy_cuts_what_is_no_longer_allowed() {
    if !is_root("a_change_of_the_policy_cuts_what_is_no_longer_allowed") {
        return;
    }
    let policy = json!({ "allow": ["a.example:7000", "b.example:7000"] });
    let world = setup(policy, &[("a.example", 0), ("b.example", 0)]).build();
    let _server = echo(0, 7000, "").await;
    let mut a = world.to("a.example", 7000).await;
    let mut b = world.to("b.example", 7000).await;
    for stream in [&mut a, &mut b] {
        assert_eq!(said(stream, b"hello").await.expect("it passes"), b"hello");
    }
    world.attachment.replace(rules(json!({ "allow": ["b.example:7000", "c.example"] })));
    assert!(said(&mut a, b"hello").await.is_err(), "it was cut");
    assert_eq!(said(&mut b, b"hello").await.expect("it stays"), b"hello");
    assert_eq!(exchange(world.to("a.example", 7000).await, b"x").await, None);
    let line =
        world.logged(DecisionKind::Closed, NetworkVerdict::Allowed, "no longer allows").await;
    assert_eq!(line.name.as_deref(), Some("a.example"));
    // Its address is refused now.
    let deny = json!({ "allow": ["b.example:7000"], "deny": [address(0).to_string()] });
    world.attachment.replace(rules(deny));
    assert!(said(&mut b, b"hello").await.is_err(), "it was cut");
    // Requests have to be read from now on, which an open connection cannot be.
    world.attachment.replace(rules(json!({ "allow": ["b.example:7000"] })));
    let mut b = world.to("b.example", 7000).await;
    assert_eq!(said(&mut b, b"hello").await.expect("it passes"), b"hello");
    let read = json!({ "allow": [{ "host": "b.example:7000", "access": "read-only" }] });
    world.attachment.replace(rules(read));
    assert!(said(&mut b, b"hello").await.is_err(), "it was cut");
    drop(world.attachment);
}
