//! Bounds of connections, bytes and time.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandkeep_core::limits::{
    EGRESS_CONNECTIONS_ALL_MAX, EGRESS_LOOKUPS_ALL_MAX, EGRESS_LOOKUPS_TENANT_MAX,
};
use sandkeep_core::network::{DecisionKind, NetworkVerdict};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::server::echo;
use super::world::*;
use crate::upstream::{UpstreamError, lookup};
use crate::{Attachment, Resolve, Rules, Times};

/// As many descriptors as there may be, as a service has them.
fn many_descriptors() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("up to the maximum");
    maximum.unwrap_or(u64::MAX)
}

#[tokio::test]
async fn a_flood_of_connections_is_reset_and_those_before_go_on() {
    if !is_root("a_flood_of_connections_is_reset_and_those_before_go_on") {
        return;
    }
    let policy = json!({ "allow": ["a.example:7000"], "limits": { "connections": 8 } });
    let world = setup(policy, &[("a.example", 0)]).build();
    let server = echo(0, 7000, "").await;
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut stream = world.to("a.example", 7000).await;
        stream.write_all(b"x").await.expect("sent");
        timeout(SOON, stream.read_u8()).await.expect("in time").expect("an echo");
        open.push(stream);
    }
    for _ in 0..100 {
        assert_eq!(exchange(world.to("a.example", 7000).await, b"x").await, None);
    }
    assert_eq!((world.attachment.usage().open, server.connections()), (8, 8));
    for stream in &mut open {
        stream.write_all(b"y").await.expect("sent");
        timeout(SOON, stream.read_u8()).await.expect("in time").expect("an echo");
    }
    drop(open.pop());
    let again = timeout(SOON, async {
        loop {
            let mut stream = world.to("a.example", 7000).await;
            if stream.write_all(b"z").await.is_ok() && stream.read_u8().await.is_ok() {
                return;
            }
        }
    });
    again.await.expect("there is room for one more");
    world.logged(DecisionKind::Connection, NetworkVerdict::Denied, "too many connections").await;
}

#[tokio::test]
async fn a_thousand_connections_are_open_at_once_without_asking_for_more() {
    if !is_root("a_thousand_connections_are_open_at_once_without_asking_for_more") {
        return;
    }
    if many_descriptors() < 16_384 {
        let test = "a_thousand_connections_are_open_at_once_without_asking_for_more";
        return eprintln!("SKIP {test}: the machine allows fewer than 16384 descriptors");
    }
    let world = setup(json!({ "allow": ["a.example:7000"] }), &[("a.example", 0)]).build();
    let server = echo(0, 7000, "").await;
    let mut open = Vec::new();
    for _ in 0..1000 {
        let mut stream = world.to("a.example", 7000).await;
        stream.write_all(b"x").await.expect("sent");
        open.push(stream);
    }
    for stream in &mut open {
        timeout(SOON, stream.read_u8()).await.expect("in time").expect("an echo");
    }
    assert_eq!((world.attachment.usage().open, server.connections()), (1000, 1000));
    drop(open);
    until("all end", || world.gateway.totals().open == 0).await;
}

#[tokio::test]
async fn a_connection_that_breaks_outside_breaks_inside() {
    if !is_root("a_connection_that_breaks_outside_breaks_inside") {
        return;
    }
    let world = setup(json!({ "allow": ["a.example:7000"] }), &[("a.example", 0)]).build();
    let listener = super::server::listen(0, 7000).await;
    let mut inside = world.to("a.example", 7000).await;
    inside.write_all(b"hello").await.expect("sent");
    let (mut outside, _) = listener.accept().await.expect("a connection");
    outside.read_exact(&mut [0; 5]).await.expect("it arrived");
    outside.set_zero_linger().expect("an option");
    drop(outside);
    let read = timeout(SOON, inside.read(&mut [0; 1])).await.expect("in time");
    assert_eq!(read.expect_err("it broke").kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn no_organization_takes_the_connections_of_all_by_many_sandboxes() {
    if !is_root("no_organization_takes_the_connections_of_all_by_many_sandboxes") {
        return;
    }
    let all = EGRESS_CONNECTIONS_ALL_MAX.min(many_descriptors() / 8);
    let rules = || rules(json!({ "allow": [], "limits": { "connections": 1000 } }));
    let world = setup(json!({ "allow": [] }), &[]).build();
    let sandboxes = |organization: &str| -> Vec<_> {
        (0..20).map(|_| open(&world.gateway, organization, rules(), &world.log)).collect()
    };
    let (greedy, other) = (sandboxes("greedy"), sandboxes("other"));
    let all_of = |sandboxes: &[Attachment]| -> Vec<_> {
        let of_one = |one: &Attachment| {
            let sandbox = Arc::clone(&one.sandbox);
            std::iter::from_fn(move || sandbox.admit())
        };
        sandboxes.iter().flat_map(of_one).collect()
    };
    let taken = all_of(&greedy);
    assert_eq!(taken.len() as u64, all.div_ceil(2));
    let left = all_of(&other);
    assert_eq!(left.len() as u64, (all / 2).div_ceil(2));
    drop((taken, left));
    assert_eq!(world.gateway.totals().open, 0);
    assert_eq!(all_of(&greedy).len() as u64, all.div_ceil(2), "what was given back can be had");
}

/// Does not answer for some names, as a name server that their owner has stopped.
struct Stuck;

#[async_trait::async_trait]
impl Resolve for Stuck {
    async fn resolve(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        if host.starts_with("stuck") { std::future::pending().await } else { Ok(vec![address(0)]) }
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_are_not_answered_hold_up_nobody_else_however_long_and_however_many() {
    let test = "names_that_are_not_answered_hold_up_nobody_else_however_long_and_however_many";
    if !is_root(test) {
        return;
    }
    let resolver = Some(Arc::new(Stuck) as Arc<dyn Resolve>);
    let world = Setup { resolver, ..setup(json!({ "allow": [] }), &[]) }.build();
    let sandbox = |organization| {
        let opened = open(&world.gateway, organization, Rules::default(), &world.log);
        (Arc::clone(&opened.sandbox), opened)
    };
    // So many that each could have all lookups of a sandbox, and all together more than there are.
    let greedy: Vec<_> = (0..12).map(|_| sandbox("greedy")).collect();
    for round in 0..3 {
        let all = greedy.iter().flat_map(|(sandbox, _)| {
            (0..20).map(|at| (Arc::clone(sandbox), format!("stuck-{round}-{at}.example")))
        });
        let waiting = all.map(|(sandbox, name)| async move { lookup(&sandbox, &name).await });
        for ended in futures_util::future::join_all(waiting).await {
            let UpstreamError::Lookup { source, .. } = ended.expect_err("nobody answers") else {
                panic!("it was not looked up")
            };
            assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
        }
        // Nobody waits for those any more, and the threads that they would have are still held.
        let gateway = &greedy[0].0.gateway;
        let held = EGRESS_LOOKUPS_ALL_MAX - gateway.lookups.available_permits();
        assert_eq!(held, EGRESS_LOOKUPS_TENANT_MAX, "in round {round}");
        let (other, _attachment) = sandbox("other");
        let found = lookup(&other, "a.example").await.expect("others are answered");
        assert_eq!(found, [address(0)]);
    }
}

#[tokio::test]
async fn slow_handshakes_and_idle_connections_end() {
    if !is_root("slow_handshakes_and_idle_connections_end") {
        return;
    }
    let short = Duration::from_millis(400);
    let times = Times { handshake: short, idle: short * 2, ..Times::default() };
    let policy = json!({ "allow": ["a.example", "a.example:7000"] });
    let world = Setup { times, ..setup(policy, &[("a.example", 0)]) }.build();
    let _server = echo(0, 7000, "").await;
    for (port, bytes) in [
        (443, &b"\x16\x03\x01\x02\x00\x01"[..]),
        (443, b""),
        (80, b"GET / HTTP/1.1\r\nHost: a.exam"),
        (80, b""),
        (7000, b"hello"),
        (53, b"\x00\x20\x00"),
    ] {
        let mut stream = world.to("a.example", port).await;
        stream.write_all(bytes).await.expect("sent");
        let ended = timeout(SOON, async {
            let mut buffer = [0; 64];
            while let Ok(1..) = stream.read(&mut buffer).await {}
        });
        ended.await.unwrap_or_else(|_| panic!("port {port} with {bytes:?} goes on"));
    }
    world.logged(DecisionKind::Connection, NetworkVerdict::Denied, "took too long").await;
    world.logged(DecisionKind::Closed, NetworkVerdict::Allowed, "nothing was sent").await;
}

#[tokio::test]
async fn the_bytes_of_a_sandbox_are_counted_and_run_out() {
    if !is_root("the_bytes_of_a_sandbox_are_counted_and_run_out") {
        return;
    }
    let policy = json!({ "allow": ["a.example:7000"], "limits": { "bytes_total": 100_000 } });
    let world = setup(policy, &[("a.example", 0)]).build();
    let _server = echo(0, 7000, "").await;
    let mut stream = world.to("a.example", 7000).await;
    stream.write_all(&[7; 1000]).await.expect("sent");
    let mut back = [0; 1000];
    timeout(SOON, stream.read_exact(&mut back)).await.expect("in time").expect("an echo");
    let usage = world.attachment.usage();
    assert_eq!((usage.bytes_up, usage.bytes_down), (1000, 1000));
    let received = AtomicU64::new(0);
    let flood = timeout(SOON, async {
        let (mut from, mut to) = stream.split();
        let sending = async { while to.write_all(&[7; 1000]).await.is_ok() {} };
        let receiving = async {
            let mut buffer = [0; 4096];
            while let Ok(some @ 1..) = from.read(&mut buffer).await {
                received.fetch_add(some as u64, Relaxed);
            }
        };
        tokio::join!(sending, receiving);
    });
    flood.await.expect("it is cut");
    assert!(received.load(Relaxed) < 300_000, "{received:?}");
    assert_eq!(exchange(world.to("a.example", 7000).await, b"x").await, None);
    world.logged(DecisionKind::Connection, NetworkVerdict::Denied, "used up").await;
}

#[tokio::test]
async fn the_rate_of_a_sandbox_is_one_for_all_of_its_connections() {
    if !is_root("the_rate_of_a_sandbox_is_one_for_all_of_its_connections") {
        return;
    }
    let policy = json!({ "allow": ["a.example:7000"], "limits": { "bytes_per_sec": 200_000 } });
    let world = setup(policy, &[("a.example", 0)]).build();
    let _server = echo(0, 7000, "").await;
    let began = std::time::Instant::now();
    let one = async || {
        let mut stream = world.to("a.example", 7000).await;
        let (mut from, mut to) = stream.split();
        let sending = async { to.write_all(&[7; 50_000]).await.expect("sent") };
        let mut back = vec![0; 50_000];
        let receiving = async { from.read_exact(&mut back).await.expect("an echo") };
        tokio::join!(sending, receiving);
    };
    timeout(SOON * 2, async { tokio::join!(one(), one()) }).await.expect("all arrives");
    // 200 kB took a second, less what may be sent at once and what waits in buffers of the kernel.
    assert!(began.elapsed() > Duration::from_millis(200), "{:?}", began.elapsed());
}
