//! Connections that pass as they are, once their destination is decided.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use rustls::pki_types::ServerName;
use sandkeep_core::network::{Decision, DecisionKind, NetworkVerdict};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::server::{echo, plain};
use super::world::*;
use crate::sandbox::lock;

const DENIED: (DecisionKind, NetworkVerdict) = (DecisionKind::Connection, NetworkVerdict::Denied);

fn get(host: &str) -> String {
    format!("GET /x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn tls_passes_to_an_allowed_name_untouched() {
    if !is_root("tls_passes_to_an_allowed_name_untouched") {
        return;
    }
    let world = setup(json!({ "allow": ["a.example"] }), &[("a.example", 0)]).build();
    let seen = world.realm.https(0, "a.example", &[]).await;
    let stream = world.to("a.example", 443).await;
    let tls = world.tls(stream, "a.example", &[]).await.expect("the server's own certificate");
    let answer = exchange(tls, get("a.example").as_bytes()).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("GET /x"), "{answer}");
    let line = world.logged(DecisionKind::Closed, NetworkVerdict::Allowed, "").await;
    assert_eq!((line.name.as_deref(), line.port), (Some("a.example"), Some(443)));
    assert_eq!(line.address, Some(address(0)));
    assert!(line.bytes_up > Some(0) && line.bytes_down > Some(0), "{line:?}");
    assert_eq!(seen.requests().len(), 1);
    let usage = world.attachment.usage();
    assert_eq!((usage.open, usage.connections, usage.refused), (0, 1, 0));
}

#[tokio::test]
async fn the_name_in_a_client_hello_must_be_that_of_the_connection() {
    if !is_root("the_name_in_a_client_hello_must_be_that_of_the_connection") {
        return;
    }
    let hosts = [("a.example", 0), ("b.example", 0)];
    let policy = json!({ "allow": ["a.example", "b.example", "a.example:8443"] });
    let world = setup(policy, &hosts).build();
    let seen = world.realm.https(0, "b.example", &[]).await;
    let other = world.realm.https_with(0, 8443, world.realm.config("b.example", &[])).await;
    for port in [443, 8443] {
        let stream = world.to("a.example", port).await;
        let error = world.tls(stream, "b.example", &[]).await.expect_err("another name");
        assert!(error.to_string().contains("UnrecognisedName"), "{error}");
        let line = world.logged(DENIED.0, DENIED.1, "its TLS is for b.example").await;
        assert_eq!(line.name.as_deref(), Some("a.example"));
        // Without a name.
        let mut config = world.client_config();
        config.enable_sni = false;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = world.to("a.example", port).await;
        let name = ServerName::try_from("a.example").expect("a name");
        connector.connect(name, stream).await.expect_err("no name");
        world.logged(DENIED.0, DENIED.1, "has no name").await;
    }
    let nothing = exchange(world.to("a.example", 443).await, b"GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(nothing, None, "not TLS");
    world.logged(DENIED.0, DENIED.1, "for TLS only").await;
    assert_eq!((seen.connections(), other.requests().len()), (0, 0), "nothing was sent");
}

fn open_hello(world: &World, name: &str) -> Vec<u8> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let config = Arc::new(world.client_config());
    let mut client = rustls::ClientConnection::new(config, name).expect("a client");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("a hello");
    hello
}

/// A ClientHello with an encrypted one in it (ECH), whose outer name is this.
fn encrypted_hello(world: &World, name: &str) -> Vec<u8> {
    const ECH: [u8; 2] = [0xfe, 0x0d];
    let mut hello = open_hello(world, name);
    let extension = [&ECH[..], &[0, 11], &[0, 0, 1, 0, 1, 7, 0, 0, 0, 1, 9]].concat();
    // Behind the record's and the message's header: version, random, session, suites, compressions.
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(hello[at]);
    at += 2 + usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    at += 1 + usize::from(hello[at]);
    // Three lengths grow: of the record, of the message (its last two bytes), and of the extensions.
    for of in [3, 7, at] {
        let len = u16::from_be_bytes([hello[of], hello[of + 1]]) + extension.len() as u16;
        hello[of..of + 2].copy_from_slice(&len.to_be_bytes());
    }
    hello.splice(at + 2..at + 2, extension);
    hello
}

#[tokio::test]
async fn what_a_client_hello_encrypts_does_not_change_its_name() {
    if !is_root("what_a_client_hello_encrypts_does_not_change_its_name") {
        return;
    }
    let world = setup(json!({ "allow": ["a.example"] }), &[("a.example", 0)]).build();
    let server = echo(0, 443, "").await;
    let other = encrypted_hello(&world, "public.example");
    let alert = exchange(world.to("a.example", 443).await, &other).await.expect("an alert");
    assert!(alert.len() < 8, "{alert:?}");
    world.logged(DENIED.0, DENIED.1, "its TLS is for public.example").await;
    assert_eq!(server.connections(), 0);
    let own = encrypted_hello(&world, "a.example");
    let back = exchange_half(world.to("a.example", 443).await, &own).await;
    assert_eq!(back.as_deref(), Some(&own[..]), "it arrives as it is");
    world.logged(DecisionKind::Closed, NetworkVerdict::Allowed, "encrypted one (ECH)").await;
    let seen = world.decisions().len();
    let open = open_hello(&world, "a.example");
    exchange_half(world.to("a.example", 443).await, &open).await.expect("it passes");
    let is_closed = |line: &Decision| line.kind == DecisionKind::Closed;
    until("its end is logged", || world.decisions().iter().skip(seen).any(is_closed)).await;
    let said = world.decisions().split_off(seen);
    assert!(said.iter().all(|line| line.reason.is_none()), "{said:?}");
}

#[tokio::test]
async fn only_listed_names_and_ports_are_dialed() {
    if !is_root("only_listed_names_and_ports_are_dialed") {
        return;
    }
    let policy = json!({ "allow": ["*.example", "git.test:22"], "deny": ["no.example"] });
    let hosts =
        [("a.example", 0), ("no.example", 0), ("git.test", 0), ("other.test", 0), ("example", 0)];
    let world = setup(policy, &hosts).build();
    let (ssh, web) = (echo(0, 22, "SSH-2.0-x\r\n").await, plain(0, 80).await);
    let mut stream = world.to("git.test", 22).await;
    let mut greeting = [0; 11];
    stream.read_exact(&mut greeting).await.expect("the server speaks first");
    stream.write_all(b"hello").await.expect("sent");
    stream.shutdown().await.expect("half closed");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("an answer");
    assert_eq!(rest, "hello");
    for (name, port) in
        [("git.test", 443), ("a.example", 22), ("no.example", 22), ("other.test", 22)]
    {
        assert_eq!(exchange(world.to(name, port).await, b"hello").await, None, "{name}:{port}");
    }
    let refused = exchange(world.to("no.example", 80).await, get("no.example").as_bytes()).await;
    let refused = refused.expect("an answer");
    assert!(
        refused.starts_with("HTTP/1.1 403") && refused.contains("Rule: no.example"),
        "{refused}"
    );
    assert!(refused.contains("sandkeep network allow sb"), "{refused}");
    let allowed = exchange(world.to("a.example", 80).await, get("a.example").as_bytes()).await;
    assert!(allowed.expect("an answer").starts_with("HTTP/1.1 200"));
    assert_eq!((ssh.connections(), web.connections()), (1, 1));
}

/// Every way to write addresses that must not be reached, as the kernel reports destinations.
#[tokio::test]
async fn addresses_that_are_not_public_are_refused_in_every_form() {
    if !is_root("addresses_that_are_not_public_are_refused_in_every_form") {
        return;
    }
    let world = Setup { ranges: Vec::new(), ..setup(json!({ "allow": ["*"] }), &[]) }.build();
    for text in [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "168.63.129.16",
        "100.100.100.200",
        "192.168.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "198.18.0.1",
        "198.18.0.77",
        "::1",
        "::",
        "fe80::1",
        "fe80::a9fe:a9fe",
        "fd00:ec2::254",
        "ff02::1",
        "fc00::1",
        "::ffff:169.254.169.254",
        "::ffff:127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "::169.254.169.254",
    ] {
        let claimed = SocketAddr::new(text.parse().expect(text), 8080);
        assert_eq!(exchange(world.connect(claimed).await, b"x").await, None, "{text}");
    }
    let scoped = SocketAddr::V6(std::net::SocketAddrV6::new(
        "fe80::1".parse().expect("an address"),
        8080,
        0,
        1,
    ));
    assert_eq!(exchange(world.connect(scoped).await, b"x").await, None, "fe80::1%lo");
    let denied = world.decisions();
    assert_eq!(denied.len(), 24);
    assert!(denied.iter().all(|line| (line.kind, line.verdict) == DENIED), "{denied:#?}");
}

#[tokio::test]
async fn an_address_needs_an_entry_with_its_range_and_a_range_of_the_admin() {
    if !is_root("an_address_needs_an_entry_with_its_range_and_a_range_of_the_admin") {
        return;
    }
    let server = echo(0, 5432, "").await;
    let claimed = SocketAddr::new(address(0), 5432);
    let named = json!({ "allow": [format!("{}:5432", address(0)), format!("{}", address(0))] });
    for (policy, ranges, passes) in [
        (named.clone(), vec!["127.0.0.0/8"], true),
        (named.clone(), vec!["10.0.0.0/8"], false),
        (json!({ "allow": ["*"] }), vec!["127.0.0.0/8"], false),
        (json!({ "allow": ["127.0.0.0/8"] }), vec!["127.0.0.0/8"], false),
        (json!({ "allow": ["127.0.0.0/8:5432"] }), vec!["127.0.0.0/8"], true),
        (
            json!({ "allow": ["127.0.0.0/8:5432"], "deny": [format!("{}", address(0))] }),
            vec!["127.0.0.0/8"],
            false,
        ),
    ] {
        let world = Setup { ranges, ..setup(policy.clone(), &[]) }.build();
        let answer = exchange_half(world.connect(claimed).await, b"hello").await;
        assert_eq!(answer.is_some(), passes, "{policy}");
        // The same address in its IPv6 form.
        let IpAddr::V4(v4) = claimed.ip() else { unreachable!("it is one") };
        let mapped = SocketAddr::new(v4.to_ipv6_mapped().into(), 5432);
        let answer = exchange_half(world.connect(mapped).await, b"hello").await;
        assert_eq!(answer.is_some(), passes, "{policy}");
    }
    assert_eq!(server.connections(), 4);
}

/// Sends, half-closes and reads.
async fn exchange_half(mut stream: tokio::net::TcpStream, bytes: &[u8]) -> Option<Vec<u8>> {
    stream.write_all(bytes).await.ok()?;
    stream.shutdown().await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    Some(answer).filter(|answer| answer == bytes)
}

/// Another answer each time: public, then private.
#[derive(Default)]
struct Rebinding {
    answers: Mutex<Vec<Vec<IpAddr>>>,
    asked: Mutex<usize>,
}

#[async_trait::async_trait]
impl crate::Resolve for Rebinding {
    async fn resolve(&self, _host: &str) -> std::io::Result<Vec<IpAddr>> {
        *lock(&self.asked) += 1;
        let mut answers = lock(&self.answers);
        Ok(if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() })
    }
}

#[tokio::test]
async fn the_address_that_was_checked_is_the_one_that_is_dialed() {
    if !is_root("the_address_that_was_checked_is_the_one_that_is_dialed") {
        return;
    }
    let (good, bad) = (echo(0, 80, "").await, plain(1, 80).await);
    let good_range: &'static str = Box::leak(address(0).to_string().into_boxed_str());
    let answers = vec![
        vec![address(1), address(0)],
        vec![address(1)],
        vec!["10.1.2.3".parse().expect("an address"), "169.254.169.254".parse().expect("one")],
    ];
    let resolver = Arc::new(Rebinding { answers: Mutex::new(answers), asked: Mutex::new(0) });
    let world = Setup {
        ranges: vec![good_range],
        resolver: Some(Arc::clone(&resolver) as _),
        ..setup(json!({ "allow": ["a.example:7000", "a.example"] }), &[])
    }
    .build();
    let relayed = echo(0, 7000, "").await;
    let answer = exchange_half(world.to("a.example", 7000).await, b"hello").await;
    assert_eq!(answer.as_deref(), Some(&b"hello"[..]), "of two addresses, the one that may be");
    assert_eq!(*lock(&resolver.asked), 1, "one lookup for one connection");
    for _ in 0..2 {
        assert_eq!(exchange_half(world.to("a.example", 7000).await, b"hello").await, None);
    }
    let failed = (DecisionKind::Connection, NetworkVerdict::Failed);
    let line = world.logged(failed.0, failed.1, "egress_allow_ranges").await;
    assert_eq!(line.name.as_deref(), Some("a.example"));
    assert_eq!((good.connections(), bad.connections(), relayed.connections()), (0, 0, 1));
}

#[tokio::test]
async fn a_plain_address_is_no_way_around_rules_for_a_name() {
    if !is_root("a_plain_address_is_no_way_around_rules_for_a_name") {
        return;
    }
    let allow = json!([address(0).to_string(), { "host": "ro.example", "access": "read-only" }]);
    let world = setup(json!({ "allow": allow, "deny": ["no.example"] }), &[]).build();
    let seen = world.realm.https(0, "ok.example", &[]).await;
    let web = plain(0, 80).await;
    let claimed = SocketAddr::new(address(0), 443);
    for name in ["ro.example", "no.example"] {
        let stream = world.connect(claimed).await;
        world.tls(stream, name, &[]).await.expect_err("by its address");
        let stream = world.connect(SocketAddr::new(address(0), 80)).await;
        let refused = exchange(stream, get(name).as_bytes()).await.expect("an answer");
        assert!(refused.starts_with("HTTP/1.1 403"), "{name}: {refused}");
    }
    assert_eq!((seen.requests().len(), web.requests().len()), (0, 0));
    let stream = world.connect(claimed).await;
    world.tls(stream, "ok.example", &[]).await.expect("nothing is said about this name");
}
