//! HTTP on port 80: every request of a connection is for its host, whatever tricks are in it.

use sandkeep_core::network::{DecisionKind, NetworkVerdict};
use serde_json::json;

use super::server::plain;
use super::world::*;

/// A world with two names that are one server.
fn shared_server() -> World {
    let hosts = [("a.example", 0), ("b.example", 0)];
    setup(json!({ "allow": ["a.example"] }), &hosts).build()
}

async fn send(world: &World, bytes: &str) -> String {
    exchange(world.to("a.example", 80).await, bytes.as_bytes()).await.unwrap_or_default()
}

#[tokio::test]
async fn every_request_of_a_connection_is_for_its_host() {
    if !is_root("every_request_of_a_connection_is_for_its_host") {
        return;
    }
    let world = shared_server();
    let seen = plain(0, 80).await;
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", "200"),
        ("GET / HTTP/1.1\r\nHost: A.Example.:80\r\nConnection: close\r\n\r\n", "200"),
        ("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", "200"),
        ("GET / HTTP/1.0\r\n\r\n", "200"),
        ("GET / HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n", "403"),
        ("GET / HTTP/1.1\r\nHost: a.example:81\r\nConnection: close\r\n\r\n", "403"),
        (
            "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\nConnection: close\r\n\r\n",
            "403",
        ),
        ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n", "403"),
        ("GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", "403"),
        ("GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n", "403"),
        ("GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", "403"),
        ("GET / HTTP/1.1\r\nHost: x@a.example\r\nConnection: close\r\n\r\n", "403"),
        ("GET / HTTP/1.1\r\nHost: a.example, b.example\r\nConnection: close\r\n\r\n", "403"),
        ("CONNECT a.example:80 HTTP/1.1\r\nHost: a.example:80\r\nConnection: close\r\n\r\n", "403"),
        ("CONNECT b.example:443 HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n", "403"),
        ("GET / HTTP/1.1\r\nHost : a.example\r\nConnection: close\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a.example\r\n X: folded\r\nConnection: close\r\n\r\n", "400"),
        ("GET / HTTP/1.1\nHost: a.example\nConnection: close\n\n", "200"),
    ] {
        let answer = send(&world, request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}"))
                || answer.starts_with(&format!("HTTP/1.0 {status}")),
            "{request:?}: {answer}"
        );
    }
    assert_eq!(send(&world, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await, "", "HTTP/2");
    let passed = seen.requests();
    assert_eq!(passed.len(), 5);
    assert!(passed.iter().all(|request| request.contains("host: a.example\n")), "{passed:#?}");
}

/// The second request is decided by itself, however it came along.
#[tokio::test]
async fn no_request_hides_behind_another_one() {
    if !is_root("no_request_hides_behind_another_one") {
        return;
    }
    let world = shared_server();
    let seen = plain(0, 80).await;
    let hidden = "GET /hidden HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n";
    let post = "POST /open HTTP/1.1\r\nHost: a.example\r\n";
    let len = hidden.len();
    for (what, request) in [
        ("pipelining", format!("GET /open HTTP/1.1\r\nHost: a.example\r\n\r\n{hidden}")),
        (
            "CL.TE",
            format!(
                "{post}Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
                len + 5
            ),
        ),
        (
            "TE.CL",
            format!(
                "{post}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{len:x}\r\n{hidden}\r\n0\r\n\r\n"
            ),
        ),
        ("CL.CL", format!("{post}Content-Length: 0\r\nContent-Length: {len}\r\n\r\n{hidden}")),
        (
            "an odd Transfer-Encoding",
            format!("{post}Transfer-Encoding: xchunked\r\nContent-Length: {len}\r\n\r\n{hidden}"),
        ),
        (
            "a folded Transfer-Encoding",
            format!(
                "{post}Transfer-Encoding:\r\n chunked\r\nContent-Length: {len}\r\n\r\n{hidden}"
            ),
        ),
        ("a Content-Length with a sign", format!("{post}Content-Length: +{len}\r\n\r\n{hidden}")),
        (
            "a Connection header that names Host",
            format!("GET /open HTTP/1.1\r\nHost: a.example\r\nConnection: Host\r\n\r\n{hidden}"),
        ),
        (
            "an upgrade to HTTP/2",
            format!(
                "GET /open HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade, HTTP2-Settings\r\n\
                 Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n{hidden}"
            ),
        ),
        (
            "a chunk extension",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n0;a=\"\r\n\r\n{hidden}\r\n\r\n"),
        ),
    ] {
        let answer = send(&world, &request).await;
        let hidden: Vec<_> = seen
            .requests()
            .into_iter()
            .filter(|request| request.starts_with("GET /hidden") || request.contains("h2c"))
            .collect();
        assert!(hidden.is_empty(), "{what}: {answer}\n{hidden:#?}");
    }
    for request in seen.requests() {
        assert!(request.contains("host: a.example\n"), "{request}");
        let framings = request.lines().filter(|line| {
            line.starts_with("content-length") || line.starts_with("transfer-encoding")
        });
        assert!(framings.count() <= 1, "{request}");
    }
    let line =
        world.logged(DecisionKind::Request, NetworkVerdict::Denied, "it is for b.example").await;
    assert_eq!((line.method.as_deref(), line.path.as_deref()), (Some("GET"), Some("/hidden")));
}

#[tokio::test]
async fn a_redirect_to_a_private_address_leads_nowhere() {
    if !is_root("a_redirect_to_a_private_address_leads_nowhere") {
        return;
    }
    let world = shared_server();
    let _seen = plain(0, 80).await;
    let get = "GET /redirect HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    assert!(send(&world, get).await.contains("location: http://169.254.169.254/latest/"));
    let stream = world.connect("169.254.169.254:80".parse().expect("an address")).await;
    let get = "GET /latest/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n";
    let answer = exchange(stream, get.as_bytes()).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[tokio::test]
async fn an_answer_says_why_a_server_was_not_reached() {
    if !is_root("an_answer_says_why_a_server_was_not_reached") {
        return;
    }
    let policy = json!({ "allow": ["a.example", "gone.example", "private.example"] });
    let mut setup = setup(policy, &[("a.example", 3)]);
    setup.hosts.insert("private.example".to_owned(), vec!["10.0.0.1".parse().expect("one")]);
    let world = setup.build();
    for (name, part) in [
        ("a.example", "does not answer on port 80"),
        ("gone.example", "was not found"),
        ("private.example", "egress_allow_ranges"),
    ] {
        let get = format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        let answer = exchange(world.to(name, 80).await, get.as_bytes()).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains(part), "{name}: {answer}");
    }
}
