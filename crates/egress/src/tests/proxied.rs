//! The explicit proxy decides as for direct connections.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::server::{echo, plain};
use super::world::*;

async fn proxy(world: &World, bytes: &str) -> String {
    exchange(world.connect(crate::PROXY).await, bytes.as_bytes()).await.unwrap_or_default()
}

/// Asks for a tunnel and reads the head of the answer.
async fn tunnel(world: &World, target: &str) -> (TcpStream, String) {
    let mut stream = world.connect(crate::PROXY).await;
    let ask = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.expect("sent");
    let mut head = Vec::new();
    let read = timeout(SOON, async {
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => break,
            }
        }
    });
    read.await.expect("it answers");
    (stream, String::from_utf8_lossy(&head).into_owned())
}

#[tokio::test]
async fn a_tunnel_is_a_connection_like_any_other() {
    if !is_root("a_tunnel_is_a_connection_like_any_other") {
        return;
    }
    let policy = json!({ "allow": ["a.example", "git.example:22"], "deny": ["no.example"] });
    let hosts = [("a.example", 0), ("b.example", 0), ("git.example", 0), ("no.example", 0)];
    let world = setup(policy, &hosts).build();
    let seen = world.realm.https(0, "a.example", &[]).await;
    let (ssh, web) = (echo(0, 22, "").await, plain(0, 80).await);
    let (stream, head) = tunnel(&world, "a.example:443").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let get = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    let tls = world.tls(stream, "a.example", &[]).await.expect("the server's own");
    assert!(exchange(tls, get).await.expect("an answer").starts_with("HTTP/1.1 200"));
    // Another name inside of the tunnel.
    let (stream, _) = tunnel(&world, "a.example:443").await;
    world.tls(stream, "b.example", &[]).await.expect_err("not its name");
    let (stream, _) = tunnel(&world, "a.example:80").await;
    let other = b"GET / HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n";
    assert!(exchange(stream, other).await.expect("an answer").starts_with("HTTP/1.1 403"));
    let (mut stream, head) = tunnel(&world, "git.example:22").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    stream.write_all(b"hello").await.expect("sent");
    let mut back = [0; 5];
    stream.read_exact(&mut back).await.expect("an answer");
    assert_eq!(&back, b"hello");
    assert_eq!((seen.requests().len(), web.requests().len(), ssh.connections()), (1, 0, 1));
}

#[tokio::test]
async fn a_tunnel_to_elsewhere_is_refused_in_every_notation() {
    if !is_root("a_tunnel_to_elsewhere_is_refused_in_every_notation") {
        return;
    }
    let world = setup(json!({ "allow": ["a.example"], "deny": ["no.example"] }), &[]).build();
    for (target, status) in [
        ("b.example:443", "403"),
        ("no.example:443", "403"),
        ("a.example:22", "403"),
        ("169.254.169.254:80", "403"),
        ("[::ffff:169.254.169.254]:80", "403"),
        ("[fd00:ec2::254]:80", "403"),
        ("127.0.0.1:80", "403"),
        ("[::1]:80", "403"),
        ("198.18.0.1:3128", "400"),
        ("198.18.0.77:443", "400"),
        ("2852039166:80", "400"),
        ("0xa9fea9fe:80", "400"),
        ("169.254.43518:80", "400"),
        ("0251.0376.0251.0376:80", "400"),
        ("user@a.example:443", "400"),
    ] {
        let (_, head) = tunnel(&world, target).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{target}: {head}");
    }
}

#[tokio::test]
async fn each_request_to_the_proxy_is_decided_by_itself() {
    if !is_root("each_request_to_the_proxy_is_decided_by_itself") {
        return;
    }
    let hosts = [("a.example", 0), ("b.example", 1), ("c.example", 1)];
    let world = setup(json!({ "allow": ["a.example", "b.example"] }), &hosts).build();
    let (a, b) = (plain(0, 80).await, plain(1, 80).await);
    let get = |host: &str, end: &str| {
        format!(
            "GET http://{host}/x HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: x\r\n{end}\r\n"
        )
    };
    let close = "Connection: close\r\n";
    let all =
        [get("a.example", ""), get("b.example", ""), get("c.example", ""), get("a.example", close)];
    let answer = proxy(&world, &all.concat()).await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 3, "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 403").count(), 1, "{answer}");
    assert_eq!((a.requests().len(), b.requests().len()), (2, 1));
    let seen = a.requests().concat();
    assert!(seen.contains("GET /x\n") && !seen.to_lowercase().contains("proxy-auth"), "{seen}");
    for (request, part) in [
        (format!("GET /x HTTP/1.1\r\nHost: a.example\r\n{close}\r\n"), "400"),
        (format!("GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n{close}\r\n"), "400"),
        (format!("GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n{close}\r\n"), "403"),
        (
            format!("GET http://169.254.169.254/ HTTP/1.1\r\nHost: 169.254.169.254\r\n{close}\r\n"),
            "403",
        ),
        (format!("CONNECT a.example HTTP/1.1\r\nHost: a.example\r\n{close}\r\n"), "400"),
    ] {
        let answer = proxy(&world, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {part}")), "{request}: {answer}");
    }
}
