//! Ways out that a policy does not allow, tried from inside, also as root there.

use serde_json::{Value, json};

use super::upstream::{Upstream, World};
use crate::skip_if;
use crate::support::{Daemon, obstacle};

/// A Python program inside; it prints what it has to say.
fn python(daemon: &Daemon, id: &str, program: &str) -> String {
    let exec = json!({ "argv": ["/usr/bin/python3", "-c", program], "user": "root" });
    let ended = daemon.exec(id, &exec);
    ended.stdout_text() + &ended.stderr_text()
}

#[test]
fn no_direct_address_leads_out() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let daemon = world.daemon();
    let id = daemon.create_allowing(&[&server.entry("a.test")]);
    let program = format!(
        r#"
import socket
for family, address in [
    (socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "198.18.0.1"), (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET, "169.254.169.254"), (socket.AF_INET, "10.0.0.1"), (socket.AF_INET6, "::1"),
    (socket.AF_INET6, "::ffff:127.0.0.1"), (socket.AF_INET6, "::ffff:192.0.2.1"),
    (socket.AF_INET6, "fd00::1"), (socket.AF_INET6, "64:ff9b::7f00:1"), (socket.AF_INET6, "fe80::1%lo"),
]:
    s = socket.socket(family, socket.SOCK_STREAM)
    s.settimeout(20)
    try:
        s.connect((address, {port}))
        s.sendall(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
        got = s.recv(100)
        if b"hello" in got or b"200" in got: print("OUT", address, got)
    except OSError as e:
        pass
    finally:
        s.close()
"#,
        port = server.port
    );
    assert_eq!(python(&daemon, &id, &program), "");
    assert!(server.requests().is_empty(), "{:?}", server.requests());
}

#[test]
fn datagrams_and_raw_sockets_lead_nowhere() {
    skip_if!(obstacle());
    let world = World::new();
    let daemon = world.daemon();
    let id = daemon.create_with(&json!({ "network": "open" }));
    // On the host, not a listener of the sandbox: a datagram that arrives is a leak.
    let host = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    host.set_read_timeout(Some(std::time::Duration::from_millis(500))).expect("a time");
    let port = host.local_addr().expect("an address").port();
    let program = format!(
        r#"
import socket
for address, port in [("192.0.2.1", 443), ("127.0.0.1", {port}), ("192.0.2.1", {port}), ("224.0.0.251", 5353)]:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try: s.sendto(b"leak", (address, port))
    except OSError: pass
for kind, proto in [(socket.SOCK_RAW, 1), (socket.SOCK_RAW, 6), (socket.SOCK_DGRAM, 1)]:
    try:
        s = socket.socket(socket.AF_INET, kind, proto)
        s.settimeout(2)
        s.sendto(b"\x08\x00\xf7\xff\x00\x00\x00\x00", ("192.0.2.1", 0))
        print("OUT", kind, proto, s.recv(100))
    except OSError: pass
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)
    print("OUT packet")
except OSError: pass
"#
    );
    assert_eq!(python(&daemon, &id, &program), "");
    let mut buffer = [0; 100];
    assert!(host.recv(&mut buffer).is_err(), "a datagram left the sandbox");
}

#[test]
fn a_denied_name_is_refused_by_every_resolver() {
    skip_if!(obstacle());
    let world = World::new();
    let daemon = world.daemon();
    let id = daemon.create_allowing(&["a.test"]);
    let program = r#"
import socket, struct
def ask(server, name):
    question = b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\0"
    query = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + question + struct.pack(">HH", 1, 1)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(20)
    s.sendto(query, (server, 53))
    answer, who = s.recvfrom(512)
    return answer[3] & 15, struct.unpack(">H", answer[6:8])[0], who[0]
for server in ["198.18.0.1", "8.8.8.8", "192.0.2.53"]:
    print(*ask(server, "c2VjcmV0.tunnel.example"), *ask(server, "a.test"))
"#;
    let said = python(&daemon, &id, program);
    let expected =
        "5 0 198.18.0.1 0 1 198.18.0.1\n5 0 8.8.8.8 0 1 8.8.8.8\n5 0 192.0.2.53 0 1 192.0.2.53\n";
    assert_eq!(said, expected, "refused, and answered from where it was asked");
    let log = daemon.network_log(&id);
    assert!(
        log.iter().any(|line| line["name"] == "c2vjcmv0.tunnel.example"
            || line["name"] == "c2VjcmV0.tunnel.example"),
        "{log:?}"
    );
}

#[test]
fn another_name_on_the_way_is_seen() {
    skip_if!(obstacle());
    let [high, low] = u16::try_from(std::process::id() % 65_000).expect("small").to_be_bytes();
    let address = format!("127.77.{high}.{}", low.max(1));
    let (server, world) = (Upstream::http_at(&address), World::new());
    let daemon = world.with_host(&address, "web.test").daemon();
    let id = daemon.create_allowing(&["web.test"]);
    for options in [
        "-H 'Host: b.test' http://web.test/",
        "--request-target http://b.test/ http://web.test/",
        "-x http://198.18.0.1:3128 http://b.test/",
        "-p -x http://198.18.0.1:3128 http://b.test/",
        "-x http://198.18.0.1:3128 -H 'Host: b.test' http://web.test/",
        "--resolve b.test:80:198.18.0.1 http://b.test/",
    ] {
        let ended = daemon.sh(&id, &format!("curl -sS --max-time 20 -f {options}"));
        assert!(!ended.stdout_text().contains("hello"), "{options}: {ended:?}");
    }
    assert!(server.requests().is_empty(), "{:?}", server.requests());
    for options in ["", "-x http://198.18.0.1:3128", "-p -x http://198.18.0.1:3128"] {
        let curl = format!("curl -sS --max-time 20 {options} http://web.test/");
        assert_eq!(daemon.sh(&id, &curl).ok(), "hello", "the proxy decides as for all others");
    }
}

#[test]
fn root_inside_cannot_widen_its_network() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let daemon = world.daemon();
    let id = daemon.create_with(&json!({
        "network": { "allow": [server.entry("a.test")] }, "privilege": "root",
    }));
    let tries = [
        "ip route add default dev lo",
        "ip route flush table all",
        "ip route flush table local",
        "ip addr flush dev lo",
        "ip link add v0 type veth peer name v1",
        "ip link set lo down",
        "ip netns add x",
        "nsenter -t 1 -n true && nsenter -t 2 -n true",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "mount -t sysfs none /mnt",
    ];
    for command in tries {
        // With any answer, nothing more can be reached afterwards.
        daemon.root_sh(&id, command);
        let other = server.url("b.test");
        assert!(!daemon.reaches(&id, &other), "after {command}");
        let direct = format!("http://127.0.0.1:{}/", server.port);
        assert!(!daemon.reaches(&id, &direct), "after {command}");
    }
    assert!(server.requests().iter().all(|head| head.contains("a.test")));
    let found = daemon.root_sh(
        &id,
        "find / -xdev \\( -name 'secrets.key' -o -path '*/egress/*.key' -o -name ca.key \\) 2>/dev/null",
    );
    assert_eq!(found.stdout_text(), "", "the key of the authority");
}

#[test]
fn a_flood_of_refused_connections_does_not_flood_the_events() {
    skip_if!(obstacle());
    let world = World::new();
    let daemon = world.daemon();
    let id = daemon.create_allowing(&["a.test"]);
    let program = r#"
import socket
for n in range(3000):
    s = socket.socket()
    s.settimeout(20)
    try: s.connect(("192.0.%d.%d" % (n // 250, 1 + n % 250), 443)); s.recv(1)
    except OSError: pass
    s.close()
"#;
    assert_eq!(python(&daemon, &id, program), "");
    let refused = daemon.network(&id)["usage"]["refused"].as_u64();
    assert!(refused >= Some(3000), "{refused:?}");
    daemon.network_log(&id);
    let target = format!("/api/v1/events?kind=network.denied&sandbox={id}&limit=1000");
    let events = daemon.expect(200, "GET", &target, &Value::Null);
    let count = events["items"].as_array().map_or(0, Vec::len);
    assert!((1..=100).contains(&count), "{count} events");
    assert_eq!(daemon.sh(&id, "true").exit_code, Some(0));
}
