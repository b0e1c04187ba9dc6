//! Streams through ports: what they keep alive, and what ends them.

use serde_json::{Value, json};

use super::{PORT, Site};
use crate::daemon;
use crate::support::{Patience, Raw, until};

/// Begins to read an answer by the port's host name.
fn begin(site: &Site<'_>, target: &str) -> Raw {
    let mut raw = Raw::open(site.daemon.address());
    raw.send(format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", site.host(PORT)).as_bytes());
    assert_eq!(raw.head().status, 200);
    raw
}

#[test]
fn traffic_through_a_port_keeps_its_sandbox_from_being_idle() {
    let daemon = daemon!();
    let site = Site::open_with(&daemon, &json!({ "idle_timeout_secs": 2 }));
    // No exec and no process runs: only the stream is there, and it lasts longer than the timeout.
    let mut raw = begin(&site, "/ticks/6");
    let mut ticks = 0;
    while let Some(chunk) = raw.chunk() {
        assert_eq!(chunk, b"data: tick\n\n");
        ticks += 1;
    }
    assert_eq!(ticks, 60, "the stream came to its own end");
    until("it is idle, and gone", Patience::Long, || !daemon.ids().contains(&site.id));
}

#[test]
fn a_stream_without_an_end_does_not_hold_up_a_shutdown() {
    let mut daemon = daemon!();
    let mut raw = {
        let site = Site::open(&daemon);
        let mut raw = begin(&site, "/stream");
        assert_eq!(raw.chunk().as_deref(), Some(&b"data: one\n\n"[..]));
        raw
    };
    let (status, said) = daemon.stop_and_hear();
    assert_eq!(status.code(), Some(0));
    assert_eq!(raw.rest(), b"", "it is cut, not ended");
    assert!(!said.contains("did not finish in time"), "{said}");
    daemon.start_again(&crate::support::Setup::default());
    assert_eq!(daemon.request("GET", "/readyz", &Value::Null).0, 200);
}
