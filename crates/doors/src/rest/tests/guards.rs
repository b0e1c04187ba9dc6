use std::io::{Read, Write};
use std::net::SocketAddr;

use reqwest::Method;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::harness::{Answer, Daemon};

async fn answer_to(daemon: &Daemon, header: &str, value: &str) -> Answer {
    Answer::of(daemon.request(Method::GET, "/healthz").header(header, value)).await
}

#[tokio::test]
async fn a_name_that_was_rebound_to_loopback_is_refused() {
    let daemon = Daemon::start().await;
    for host in ["evil.example", "evil.example:4500", "127.0.0.1.evil.example", "a.localhost"] {
        let answer = answer_to(&daemon, "host", host).await;
        assert_eq!(
            (answer.status, answer.body["code"].as_str()),
            (403, Some("foreign_host")),
            "{host}"
        );
    }
    for host in ["localhost", "localhost:1", "127.0.0.1:65535", "[::1]:4500"] {
        assert_eq!(answer_to(&daemon, "host", host).await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn a_web_page_of_another_origin_is_refused() {
    let daemon = Daemon::start().await;
    let own = format!("http://{}", daemon.address);
    for origin in ["https://evil.example", "null", "http://localhost:1", &format!("{own}0"), ""] {
        let answer = answer_to(&daemon, "origin", origin).await;
        let seen = (answer.status, answer.body["code"].as_str());
        assert_eq!(seen, (403, Some("foreign_origin")), "{origin}");
    }
    assert_eq!(answer_to(&daemon, "origin", &own).await.status, 200);
}

/// Sends bytes as they are, and reads what comes back until the daemon closes.
async fn raw(daemon: &Daemon, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(daemon.address).await.expect("it listens");
    stream.write_all(request).await.expect("it reads");
    let mut answer = Vec::new();
    // A daemon that resets the connection has answered too.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn no_host_two_hosts_or_a_foreign_target_is_refused() {
    let daemon = Daemon::start().await;
    for request in [
        "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n",
        "GET http://evil/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: \r\nConnection: close\r\n\r\n",
    ] {
        let answer = raw(&daemon, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{request:?} was answered {answer:?}");
    }
}

/// One request by another user, over a connection that is that user's own.
fn as_nobody(address: SocketAddr) -> String {
    const NOBODY: u32 = 65_534;
    // Of this thread alone; it is not used for anything else.
    let nobody = Uid::from_raw(NOBODY);
    set_thread_res_uid(nobody, nobody, nobody).expect("root may become anybody");
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[tokio::test]
async fn another_user_of_the_machine_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP another_user_of_the_machine_is_refused: needs root to act as another user");
        return;
    }
    let daemon = Daemon::start().await;
    let address = daemon.address;
    // A thread of its own, which ends with its borrowed identity.
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(as_nobody(address)));
    let answer = receiver.await.expect("the other user got an answer");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.contains("\"foreign_peer\"") && answer.contains("uid 65534"), "{answer}");
    assert_eq!(daemon.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn odd_bytes_never_stop_the_daemon() {
    let daemon = Daemon::start().await;
    let long = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "a".repeat(60_000)
    );
    for request in [
        &b"\x00\xff\x00\xff\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET /api/v1/sandboxes/%ff%fe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /api/v1/sandboxes/%2e%2e%2f%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"POST /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
        long.as_bytes(),
    ] {
        let answer = raw(&daemon, request).await;
        let fine = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(fine, "{:?} was answered {answer:?}", String::from_utf8_lossy(request));
    }
    assert_eq!(daemon.get("/healthz").await.status, 200);
}
