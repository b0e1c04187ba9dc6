//! Hosts whose requests are read: secrets, rules for requests, and everything that HTTP can do besides.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::server::WebPkiClientVerifier;
use sandkeep_core::network::{DecisionKind, NetworkVerdict, SecretValue};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::server::plain;
use super::world::*;
use crate::{HeaderRule, Rules, Secret, needs_ca};

const PLACEHOLDER: &str = "sandkeep-placeholder-0123456789abcdef";
const VALUE: &str = "hush-hush";

fn secret(hosts: &[&str]) -> BTreeMap<String, Secret> {
    let hosts = hosts.iter().map(|host| host.parse().expect("a host")).collect();
    let value = SecretValue::new(VALUE.to_owned());
    let secret = Secret { placeholder: PLACEHOLDER.to_owned(), value, hosts };
    BTreeMap::from([("TOKEN".to_owned(), secret)])
}

/// `a.example` gets the secret, `b.example` does not.
fn with_secret(policy: serde_json::Value) -> World {
    let mut setup = setup(policy, &[("a.example", 0), ("b.example", 1)]);
    setup.rules.secrets = secret(&["a.example"]);
    setup.build()
}

async fn https(world: &World, name: &str, request: &str) -> String {
    let stream = world.to(name, 443).await;
    let tls = world.tls(stream, name, &["http/1.1"]).await.expect("a certificate");
    exchange(tls, request.as_bytes()).await.expect("an answer")
}

fn get(host: &str, headers: &str) -> String {
    format!("GET /x HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n")
}

type Http2 = http2::SendRequest<Full<Bytes>>;

async fn http2(world: &World, name: &str) -> Http2 {
    let stream = world.to(name, 443).await;
    let tls = world.tls(stream, name, &["h2"]).await.expect("a certificate");
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let made = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await;
    let (sender, connection) = made.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

async fn ask(sender: &mut Http2, method: &str, uri: &str) -> Response<Incoming> {
    let request = Request::builder().method(method).uri(uri).header("te", "trailers");
    let request = request.body(Full::default()).expect("a request");
    timeout(SOON, sender.send_request(request)).await.expect("it answers").expect("an answer")
}

#[tokio::test]
async fn a_secret_is_put_into_headers_for_its_host_and_nowhere_else() {
    if !is_root("a_secret_is_put_into_headers_for_its_host_and_nowhere_else") {
        return;
    }
    let world = with_secret(json!({ "allow": ["a.example", "b.example"] }));
    let a = world.realm.https(0, "a.example", &["http/1.1"]).await;
    let (b, open) = (world.realm.https(1, "b.example", &[]).await, plain(0, 80).await);
    let header = format!("Authorization: Bearer {PLACEHOLDER}\r\n");
    let basic = BASE64.encode(format!("x-access-token:{PLACEHOLDER}"));
    let basic = format!("Authorization: Basic {basic}\r\n");
    assert!(https(&world, "a.example", &get("a.example", &header)).await.contains(VALUE));
    let expected = BASE64.encode(format!("x-access-token:{VALUE}"));
    assert!(https(&world, "a.example", &get("a.example", &basic)).await.contains(&expected));
    let stays = a.requests().len();
    // In the URL, in the body, in a trailer.
    let url =
        format!("GET /?key={PLACEHOLDER} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    https(&world, "a.example", &url).await;
    let len = PLACEHOLDER.len();
    let body = format!(
        "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{PLACEHOLDER}"
    );
    https(&world, "a.example", &body).await;
    // To another host, and unencrypted to the same.
    https(&world, "b.example", &get("b.example", &header)).await;
    let stream = world.to("a.example", 80).await;
    exchange(stream, get("a.example", &header).as_bytes()).await.expect("an answer");
    let all = [&a.requests()[stays..], &b.requests(), &open.requests()].concat();
    assert_eq!(all.len(), 4);
    for request in all {
        assert!(request.contains(PLACEHOLDER) && !request.contains(VALUE), "{request}");
    }
    let log = format!("{:?}", world.decisions());
    assert!(!log.contains(VALUE) && !log.contains(PLACEHOLDER), "{log}");
}

#[tokio::test]
async fn unencrypted_a_secret_goes_only_to_a_port_that_was_named() {
    if !is_root("unencrypted_a_secret_goes_only_to_a_port_that_was_named") {
        return;
    }
    let mut setup = setup(json!({ "allow": ["a.example:8080"] }), &[("a.example", 0)]);
    setup.rules.secrets = secret(&["a.example:8080"]);
    let world = setup.build();
    let _seen = plain(0, 8080).await;
    let request = get("a.example:8080", &format!("X-Key: {PLACEHOLDER}\r\n"));
    let answer = exchange(world.to("a.example", 8080).await, request.as_bytes()).await;
    let answer = answer.expect("an answer");
    assert!(answer.to_lowercase().contains(&format!("x-key: {VALUE}")), "{answer}");
}

#[tokio::test]
async fn headers_of_a_rule_are_set_in_place_of_those_of_the_program() {
    if !is_root("headers_of_a_rule_are_set_in_place_of_those_of_the_program") {
        return;
    }
    let mut setup = setup(json!({ "allow": ["a.example"] }), &[("a.example", 0)]);
    let set = [("X-Tenant", "ours"), ("Host", "evil.example"), ("Content-Length", "7")];
    let set = set.map(|(name, value)| (name.to_owned(), SecretValue::new(value.to_owned())));
    let hosts = vec!["a.example".parse().expect("a host")];
    setup.rules.headers = vec![HeaderRule { hosts, set: BTreeMap::from(set) }];
    let world = setup.build();
    let _seen = world.realm.https(0, "a.example", &[]).await;
    let answer = https(&world, "a.example", &get("a.example", "X-Tenant: theirs\r\n")).await;
    let answer = answer.to_lowercase();
    assert!(answer.contains("x-tenant: ours") && !answer.contains("theirs"), "{answer}");
    assert!(answer.contains("host: a.example") && !answer.contains("evil"), "{answer}");
}

#[tokio::test]
async fn only_hosts_with_secrets_or_rules_are_terminated() {
    if !is_root("only_hosts_with_secrets_or_rules_are_terminated") {
        return;
    }
    let world = with_secret(json!({ "allow": ["a.example", "b.example"] }));
    let _servers = (
        world.realm.https(0, "a.example", &[]).await,
        world.realm.https(1, "b.example", &[]).await,
    );
    for (name, is_ours) in [("a.example", true), ("b.example", false)] {
        let stream = world.to(name, 443).await;
        let tls = world.tls(stream, name, &[]).await.expect("a certificate");
        let chain = tls.get_ref().1.peer_certificates().expect("certificates");
        let ours = world.sandbox().gateway.authority.leaf(name).expect("a certificate");
        assert_eq!(chain[0] == ours.cert[0], is_ours, "{name}");
    }
    assert!(needs_ca(&Rules { secrets: secret(&["a.example"]), ..Rules::default() }));
    assert!(needs_ca(&rules(json!({ "allow": [{ "host": "a.example", "access": "full" }] }))));
    assert!(!needs_ca(&rules(json!({ "allow": ["*"], "on_deny": "ask" }))));
}

#[tokio::test]
async fn a_read_only_host_is_read_only_over_both_versions_of_http() {
    if !is_root("a_read_only_host_is_read_only_over_both_versions_of_http") {
        return;
    }
    let policy = json!({ "allow": [
        { "host": "a.example", "access": "read-only", "paths": ["/repos/**"] },
    ] });
    let world = setup(policy, &[("a.example", 0)]).build();
    let seen = world.realm.https(0, "a.example", &["h2", "http/1.1"]).await;
    let mut sender = http2(&world, "a.example").await;
    let base = "https://a.example";
    assert_eq!(ask(&mut sender, "GET", &format!("{base}/repos/x")).await.status(), 200);
    for (method, path) in [
        ("POST", "/repos/x"),
        ("DELETE", "/repos/x"),
        ("GET", "/admin"),
        ("GET", "/repos/%2e%2e/admin"),
        ("GET", "/repos/../admin"),
        ("GET", "/repos//x"),
        ("GET", "/repos/x?_method=POST"),
    ] {
        let response = ask(&mut sender, method, &format!("{base}{path}")).await;
        assert_eq!(response.status(), 403, "{method} {path}");
        let text = response.into_body().collect().await.expect("a body").to_bytes();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("Reason: ") && text.contains("sandkeep network allow"), "{text}");
    }
    let refused = https(
        &world,
        "a.example",
        "POST /repos/x HTTP/1.1\r\nHost: a.example\r\nX-HTTP-Method-Override: GET\r\nContent-Length: 2\r\n\
         Connection: close\r\n\r\nhi",
    );
    assert!(refused.await.starts_with("HTTP/1.1 403"));
    let overridden =
        get("a.example", "X-HTTP-Method-Override: DELETE\r\n").replace("/x", "/repos/x");
    assert!(https(&world, "a.example", &overridden).await.starts_with("HTTP/1.1 403"));
    // An upload is read, so that the program gets the answer.
    let upload = format!(
        "POST /repos/x HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nContent-Length: 3000000\r\n\r\n{}",
        "x".repeat(3_000_000)
    );
    assert!(https(&world, "a.example", &upload).await.starts_with("HTTP/1.1 403"));
    // Pipelining: the second is decided by itself.
    let first = "GET /repos/x HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let second = "POST /repos/x HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let both = https(&world, "a.example", &format!("{first}{second}")).await;
    assert!(both.contains("HTTP/1.1 200") && both.contains("HTTP/1.1 403"), "{both}");
    assert!(seen.requests().iter().all(|request| request.starts_with("GET ")));
    assert_eq!(seen.requests().len(), 2);
    let line = world.logged(DecisionKind::Request, NetworkVerdict::Denied, "this method").await;
    assert!(line.rule.is_some_and(|rule| rule.contains("read-only")));
}

#[tokio::test]
async fn all_requests_of_an_http2_connection_have_its_authority() {
    if !is_root("all_requests_of_an_http2_connection_have_its_authority") {
        return;
    }
    let world = with_secret(json!({ "allow": ["a.example", "b.example"] }));
    let seen = world.realm.https(0, "a.example", &["h2"]).await;
    let mut sender = http2(&world, "a.example").await;
    assert_eq!(ask(&mut sender, "GET", "https://a.example/").await.status(), 200);
    assert_eq!(ask(&mut sender, "GET", "https://a.example:443/").await.status(), 200);
    for uri in ["https://b.example/", "https://a.example:8443/", "http://a.example/"] {
        assert_eq!(ask(&mut sender, "GET", uri).await.status(), 403, "{uri}");
    }
    let request = Request::builder().uri("https://a.example/").header("host", "b.example");
    let request = request.body(Full::default()).expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    assert_eq!(response.status(), 403, "a Host header beside :authority");
    let connect = Request::builder().method("CONNECT").uri("b.example:443");
    let response = sender.send_request(connect.body(Full::default()).expect("one")).await;
    assert!(response.is_err() || response.is_ok_and(|response| response.status() == 403));
    assert_eq!(seen.requests().len(), 2);
}

#[tokio::test]
async fn bodies_stream_with_trailers_and_unbuffered_events() {
    if !is_root("bodies_stream_with_trailers_and_unbuffered_events") {
        return;
    }
    let world = with_secret(json!({ "allow": ["a.example"] }));
    let seen = world.realm.https(0, "a.example", &["h2", "http/1.1"]).await;
    let mut sender = http2(&world, "a.example").await;
    let response = ask(&mut sender, "POST", "https://a.example/trailers").await;
    let body = response.into_body().collect().await.expect("a body");
    assert_eq!(body.trailers().expect("trailers")["grpc-status"], "0");
    assert!(seen.requests()[0].contains("te: trailers"), "{:?}", seen.requests());
    // The server sends the second event only after we have read the first.
    let mut events = ask(&mut sender, "GET", "https://a.example/events").await.into_body();
    let mut read = async || {
        let frame = timeout(SOON, events.frame()).await.expect("it is not held back");
        frame.expect("a frame").expect("no error").into_data().expect("data")
    };
    assert_eq!(&read().await[..], b"data: 1\n\n");
    seen.go.notify_one();
    assert_eq!(&read().await[..], b"data: 2\n\n");
    let mut large = ask(&mut sender, "GET", "https://a.example/large").await.into_body();
    let mut bytes = 0;
    while let Some(frame) = large.frame().await {
        bytes += frame.expect("no error").into_data().map_or(0, |data| data.len());
    }
    assert_eq!(bytes, 512 * 64 * 1024);
    let expects = "POST /x HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\n\
                   Content-Length: 5\r\nConnection: close\r\n\r\n";
    let stream = world.to("a.example", 443).await;
    let mut tls = world.tls(stream, "a.example", &["http/1.1"]).await.expect("a certificate");
    tls.write_all(expects.as_bytes()).await.expect("sent");
    let mut go_on = [0; 25];
    timeout(SOON, tls.read_exact(&mut go_on)).await.expect("in time").expect("an answer");
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(exchange(tls, b"hello").await.expect("an answer").contains("hello"));
}

#[tokio::test]
async fn a_websocket_passes_where_writes_do() {
    if !is_root("a_websocket_passes_where_writes_do") {
        return;
    }
    let upgrade = "GET /socket HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let world = with_secret(json!({ "allow": ["a.example"] }));
    let seen = world.realm.https(0, "a.example", &["http/1.1"]).await;
    let stream = world.to("a.example", 443).await;
    let mut tls = world.tls(stream, "a.example", &["http/1.1"]).await.expect("a certificate");
    tls.write_all(upgrade.as_bytes()).await.expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(SOON, tls.read_u8()).await.expect("in time").expect("an answer"));
    }
    let text = String::from_utf8_lossy(&head).to_lowercase();
    assert!(text.starts_with("http/1.1 101") && text.contains("upgrade: websocket"), "{text}");
    tls.write_all(b"frames").await.expect("sent");
    let mut back = [0; 6];
    timeout(SOON, tls.read_exact(&mut back)).await.expect("in time").expect("an echo");
    assert_eq!(&back, b"frames");
    assert_eq!(seen.requests().len(), 1);
    drop(tls);
    let rules = rules(json!({ "allow": [{ "host": "a.example", "access": "read-only" }] }));
    world.attachment.replace(rules);
    let last = upgrade.replace("Connection: Upgrade", "Connection: Upgrade, close");
    let refused = https(&world, "a.example", &last).await;
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("WebSocket"), "{refused}");
    assert_eq!(seen.requests().len(), 1);
}

#[tokio::test]
async fn a_server_that_is_not_trusted_or_wants_a_certificate_is_explained() {
    if !is_root("a_server_that_is_not_trusted_or_wants_a_certificate_is_explained") {
        return;
    }
    let world = with_secret(json!({ "allow": ["a.example"] }));
    let other = super::server::Realm::new();
    let seen = other.https(0, "a.example", &[]).await;
    let header = format!("Authorization: Bearer {PLACEHOLDER}\r\n");
    let answer = https(&world, "a.example", &get("a.example", &header)).await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("no certificate"), "{answer}");
    assert_eq!(seen.requests().len(), 0, "the secret went nowhere");

    let mut setup = setup(json!({ "allow": ["c.example"] }), &[("c.example", 2)]);
    setup.rules.secrets = secret(&["c.example"]);
    let world = setup.build();
    let roots = Arc::new(world.client_config_roots());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let own = world.realm.config("c.example", &[]);
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("a verifier"))
        .with_cert_resolver(Arc::clone(&own.cert_resolver));
    let _seen = world.realm.https_with(2, 443, config).await;
    let answer = https(&world, "c.example", &get("c.example", "")).await;
    assert!(answer.contains("wants a certificate of the client"), "{answer}");
}

#[tokio::test]
async fn a_program_that_does_not_trust_the_authority_is_explained_in_the_log() {
    if !is_root("a_program_that_does_not_trust_the_authority_is_explained_in_the_log") {
        return;
    }
    let world = with_secret(json!({ "allow": ["a.example"] }));
    let _seen = world.realm.https(0, "a.example", &[]).await;
    let other = setup(json!({ "allow": [] }), &[]).build();
    let stream = world.to("a.example", 443).await;
    other.tls(stream, "a.example", &[]).await.expect_err("another authority");
    let line = world.logged(DecisionKind::Connection, NetworkVerdict::Failed, "pins").await;
    assert_eq!(line.name.as_deref(), Some("a.example"));
}

#[tokio::test]
async fn a_kept_connection_outlives_its_server() {
    if !is_root("a_kept_connection_outlives_its_server") {
        return;
    }
    let world = with_secret(json!({ "allow": ["a.example"] }));
    let listener = super::server::listen(0, 443).await;
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(world.realm.config("a.example", &[])));
    let serving = tokio::spawn(async move {
        // One request for each connection, without saying so before.
        for _ in 0..2 {
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut stream = acceptor.accept(stream).await.expect("TLS");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.expect("a request"));
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(answer).await.expect("sent");
            stream.shutdown().await.expect("closed");
        }
    });
    let stream = world.to("a.example", 443).await;
    let mut tls = world.tls(stream, "a.example", &["http/1.1"]).await.expect("a certificate");
    for _ in 0..2 {
        tls.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").await.expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") {
            let byte = timeout(SOON, tls.read_u8()).await.expect("in time");
            answer.push(byte.unwrap_or_else(|error| {
                panic!("{error} after {}", String::from_utf8_lossy(&answer))
            }));
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    }
    serving.await.expect("both were served");
}
