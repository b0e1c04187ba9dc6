use std::net::IpAddr;

use sandkeep_core::limits::EGRESS_QUERIES_BURST;
use sandkeep_core::network::{DecisionKind, NetworkVerdict};
use serde_json::json;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::dns::tests::query;
use crate::resolver::answer;
use crate::tests::world::{SOON, World, is_root, setup};

const A: u16 = 1;
const PTR: u16 = 12;
const AAAA: u16 = 28;
const HTTPS: u16 = 65;

/// The code of an answer and its data.
fn ask(world: &World, name: &str, kind: u16) -> (u8, Vec<u8>) {
    let asked = query(name, kind);
    let answer = answer(world.sandbox(), &asked).expect("an answer");
    let record = answer.get(asked.len() + 12..).unwrap_or_default();
    (answer[3] & 0x0f, record.to_vec())
}

/// A resolver of the host that must never be asked.
struct Never;

#[async_trait::async_trait]
impl crate::Resolve for Never {
    async fn resolve(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        panic!("{host} was looked up")
    }
}

fn world(policy: serde_json::Value) -> World {
    let mut setup = setup(policy, &[]);
    setup.resolver = Some(std::sync::Arc::new(Never));
    setup.build()
}

#[tokio::test]
async fn allowed_names_have_addresses_and_no_query_leaves() {
    if !is_root("allowed_names_have_addresses_and_no_query_leaves") {
        return;
    }
    let world =
        world(json!({ "allow": ["a.example", "*.cdn.example"], "deny": ["x.cdn.example"] }));
    let number = world.sandbox().names().number("a.example");
    for (name, kind, code, data) in [
        ("a.example", A, 0, number.v4().octets().to_vec()),
        ("A.EXAMPLE", AAAA, 0, number.v6().octets().to_vec()),
        ("a.example", HTTPS, 0, Vec::new()),
        ("_http._tcp.a.example", 33, 3, Vec::new()),
        ("localhost", A, 0, vec![127, 0, 0, 1]),
        ("b.example", A, 5, Vec::new()),
        ("x.cdn.example", A, 5, Vec::new()),
        ("cdn.example", A, 5, Vec::new()),
        ("_http._tcp.b.example", 33, 5, Vec::new()),
        ("secret-data-in-a-label.evil.example", A, 5, Vec::new()),
        ("secret-data-in-a-label.evil.example", 16, 5, Vec::new()),
        ("python", A, 5, Vec::new()),
        ("0x7f000001", A, 5, Vec::new()),
        ("2130706433", A, 5, Vec::new()),
        ("1.2.3.4", A, 5, Vec::new()),
        ("a.example.b", A, 5, Vec::new()),
    ] {
        assert_eq!(ask(&world, name, kind), (code, data), "{name} {kind}");
    }
    let usage = world.attachment.usage();
    assert_eq!((usage.queries, usage.queries_refused), (16, 11));
    let line = world.logged(DecisionKind::Name, NetworkVerdict::Denied, "was not looked up").await;
    assert_eq!(line.name.as_deref(), Some("b.example"));
}

#[tokio::test]
async fn addresses_lead_back_to_their_names() {
    if !is_root("addresses_lead_back_to_their_names") {
        return;
    }
    let world = world(json!({ "allow": ["a.example"] }));
    let number = world.sandbox().names().number("a.example");
    let [a, b, c, d] = number.v4().octets();
    let v4 = format!("{d}.{c}.{b}.{a}.in-addr.arpa");
    let v6: Vec<String> =
        format!("{:032x}", number.v6().to_bits()).chars().rev().map(String::from).collect();
    let encoded = b"\x01a\x07example\x00".to_vec();
    assert_eq!(ask(&world, &v4, PTR), (0, encoded.clone()));
    assert_eq!(ask(&world, &format!("{}.ip6.arpa", v6.join(".")), PTR), (0, encoded));
    for other in ["8.8.8.8.in-addr.arpa", "x.in-addr.arpa", "1.2.in-addr.arpa", "1.ip6.arpa"] {
        assert_eq!(ask(&world, other, PTR), (3, Vec::new()), "{other}");
    }
    assert_eq!(world.attachment.name_of(number.v4().into()).as_deref(), Some("a.example"));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_queries_is_dropped() {
    if !is_root("a_flood_of_queries_is_dropped") {
        return;
    }
    let world = world(json!({ "allow": ["a.example"] }));
    let asked = query("a.example", A);
    let answered =
        (0..EGRESS_QUERIES_BURST * 3).filter(|_| answer(world.sandbox(), &asked).is_some());
    assert_eq!(answered.count(), EGRESS_QUERIES_BURST as usize);
}

#[tokio::test]
async fn with_ask_and_audit_every_name_has_an_address_but_denied_ones() {
    if !is_root("with_ask_and_audit_every_name_has_an_address_but_denied_ones") {
        return;
    }
    for on_deny in ["ask", "audit"] {
        let world = world(json!({ "allow": [], "deny": ["no.example"], "on_deny": on_deny }));
        assert_eq!(ask(&world, "any.example", A).0, 0);
        assert_eq!(ask(&world, "no.example", A).0, 5);
        assert_eq!(world.attachment.requests(), []);
    }
}

/// Whichever server a program asks, over a connection as well: this resolver answers.
#[tokio::test]
async fn queries_over_connections_are_answered_here_too() {
    if !is_root("queries_over_connections_are_answered_here_too") {
        return;
    }
    let world = world(json!({ "allow": ["a.example"] }));
    let mut stream = world.connect("8.8.8.8:53".parse().expect("an address")).await;
    for (name, code) in [("a.example", 0), ("b.example", 5)] {
        let asked = query(name, A);
        stream.write_u16(asked.len().try_into().expect("short")).await.expect("sent");
        stream.write_all(&asked).await.expect("sent");
        let len = timeout(SOON, stream.read_u16()).await.expect("in time").expect("an answer");
        let mut answer = vec![0; len.into()];
        stream.read_exact(&mut answer).await.expect("all of it");
        assert_eq!((&answer[..2], answer[3] & 0x0f), (&asked[..2], code), "{name}");
    }
}
