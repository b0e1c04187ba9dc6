//! Requests that are sent slowly, and answers that nobody reads: what they hold of the daemon is bounded per tenant.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use sandkeep_core::limits::{CONNECTION_BUFFER_BYTES, MIB, REQUESTS_USER_MB};
use serde_json::{Value, json};

use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, obstacle, until};
use crate::templates::owners::ask;

const SANDBOXES: &str = "/api/v1/sandboxes";

/// The memory of a daemon that is no file's, in bytes.
pub fn own_memory(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid()));
    let status = status.expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn key(daemon: &Daemon, organization: &str) -> String {
    key_of(&create_key(&daemon.data_dir(), organization, "someone", &[])).to_owned()
}

/// A request of which this much arrives, and never the end.
fn begun(daemon: &Daemon, key: &str, target: &str, bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(daemon.address()).expect("connected");
    let patience = Some(Duration::from_secs(30));
    stream.set_write_timeout(patience).expect("an option");
    let head = format!(
        "POST {target} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\
         content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         connect-protocol-version: 1\r\ncontent-length: {}\r\n\r\n{{\"name\":\"",
        bytes + 1_000_000
    );
    stream.write_all(head.as_bytes()).expect("sent");
    // One that is refused is not read to its end.
    let _ = stream.write_all(&vec![b'x'; bytes]);
    stream
}

/// Whether the answer is there, and says that there is no room.
fn was_refused(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("an option");
    let mut status = [0; 12];
    stream.read_exact(&mut status).is_ok() && status == *b"HTTP/1.1 429"
}

#[test]
fn bodies_that_never_end_hold_no_more_memory_than_their_user_may_have() {
    const CONNECTIONS: usize = 100;
    const BYTES: usize = 6_500_000;
    skip_if!(obstacle());
    let daemon = with_admin(&Setup::default());
    let [greedy, other] = ["greedy", "other"].map(|name| key(&daemon, name));
    let before = own_memory(&daemon);
    // Each of these doors reads its bodies in its own way.
    let doors = [SANDBOXES, "/mcp", "/rpc.v1.SandboxService/HealthCheck"];
    let held: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|number| begun(&daemon, &greedy, doors[number % doors.len()], BYTES))
        .collect();
    let grown = own_memory(&daemon).saturating_sub(before);
    let most = REQUESTS_USER_MB * MIB + (CONNECTIONS * 2 * CONNECTION_BUFFER_BYTES) as u64;
    assert!(grown < most + most / 4, "{} MiB are held", grown / MIB);
    assert!(grown > most / 4, "{} MiB are held: the bodies are not read at all", grown / MIB);
    let answered = held.iter().filter(|stream| was_refused(stream)).count();
    assert!(answered > CONNECTIONS / 4, "only {answered} were refused");
    let (status, made) = ask(&daemon, &other, "POST", SANDBOXES, &json!({}));
    assert_eq!(status, 201, "{made}");
    drop(held);
    until("all of it is given back", Patience::Long, || {
        ask(&daemon, &greedy, "GET", SANDBOXES, &Value::Null).0 == 200
    });
}

#[test]
fn streams_that_nobody_reads_hold_little_each_and_the_rest_goes_on() {
    const STREAMS: u64 = 200;
    skip_if!(obstacle());
    let daemon = with_admin(&Setup::default());
    let [greedy, other] = ["greedy", "other"].map(|name| key(&daemon, name));
    let (_, made) = ask(&daemon, &greedy, "POST", SANDBOXES, &json!({}));
    let path = format!("{SANDBOXES}/{}", made["id"].as_str().expect("an id"));
    let flood = json!({ "command": "head -c 30000000 /dev/zero | tr '\\0' x" });
    let (status, ran) = ask(&daemon, &greedy, "POST", &format!("{path}/execs?wait=false"), &flood);
    assert_eq!(status, 202, "{ran}");
    let exec = format!("{path}/execs/{}", ran["exec_id"].as_str().expect("an id"));
    until("it has ended", Patience::Long, || {
        ask(&daemon, &greedy, "GET", &exec, &Value::Null).1["status"] == "exited"
    });
    let before = own_memory(&daemon);
    let follow = || {
        let mut stream = TcpStream::connect(daemon.address()).expect("connected");
        let head = format!(
            "GET {exec}/output?follow=true HTTP/1.1\r\nhost: localhost\r\nx-api-key: {greedy}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream
    };
    let mut held: Vec<TcpStream> = (0..STREAMS).map(|_| follow()).collect();
    for stream in &mut held {
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("the answer begins");
        assert_eq!(status, *b"HTTP/1.1 200");
    }
    let (status, made) = ask(&daemon, &other, "POST", SANDBOXES, &json!({}));
    assert_eq!(status, 201, "{made}");
    let grown = own_memory(&daemon).saturating_sub(before);
    // A part of the output that was read for it, and what its connection holds.
    assert!(grown < STREAMS * 640 * 1024, "{} KiB for each stream", grown / STREAMS / 1024);
    // One that is read has all of it.
    let mut stream = held.pop().expect("at least one");
    let mut bytes = 0;
    let mut piece = vec![0; 1 << 20];
    while bytes < 30_000_000 {
        let read = stream.read(&mut piece).expect("more");
        assert!(read > 0, "it broke off after {bytes} bytes");
        bytes += read;
    }
}
