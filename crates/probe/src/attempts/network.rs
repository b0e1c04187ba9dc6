//! The network. Connections go only to listeners that the host has opened for this purpose; foreign addresses are
//! judged by the routes and by `connect` of a datagram socket, which looks up a route and sends nothing.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::finding::{Finding, Judge, Ways, leaked};
use crate::scene::Scene;
use crate::sys::{self, Arg};

/// A listener on loopback answers immediately.
const LOOPBACK_ANSWER: Duration = Duration::from_secs(1);

/// Reserved for documentation: assigned to nobody.
const NOBODY_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NOBODY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Cloud metadata services, which return the machine's credentials.
const METADATA: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Sockets of the machine's resolver.
const RESOLVERS: [&str; 4] = [
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/avahi-daemon/socket",
];

pub fn host_loopback(scene: &Scene) -> Finding {
    let Some(port) = scene.get("tcp").and_then(|port| port.parse::<u16>().ok()) else {
        return leaked("not judged: the host has no listener");
    };
    let mut ways = Ways::judged(Judge::BySuccess);
    let addresses: [IpAddr; 3] =
        [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), Ipv4Addr::UNSPECIFIED.into()];
    for address in addresses {
        let target = SocketAddr::new(address, port);
        ways.note(&target.to_string(), TcpStream::connect_timeout(&target, LOOPBACK_ANSWER));
    }
    ways.finding()
}

pub fn abstract_socket(scene: &Scene) -> Finding {
    let Some(name) = scene.get("abstract") else {
        return leaked("not judged: the host has no abstract socket");
    };
    let mut ways = Ways::judged(Judge::BySuccess);
    let connected = UnixAddr::from_abstract_name(name).and_then(|a| UnixStream::connect_addr(&a));
    ways.note("connect", connected);
    ways.finding()
}

pub fn foreign_address(scene: &Scene) -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    for route in routes_out() {
        ways.leak(format!("there is a route by {route}"));
    }
    if is_caught(scene) {
        ways.refuse("what is sent ends at the loopback, where it is caught");
        return ways.finding();
    }
    note_route(&mut ways, NOBODY_V4.into());
    note_route(&mut ways, NOBODY_V6.into());
    ways.finding()
}

pub fn metadata_address(scene: &Scene) -> Finding {
    if is_caught(scene) {
        return foreign_address(scene);
    }
    let mut ways = Ways::judged(Judge::BySuccess);
    METADATA.into_iter().for_each(|address| note_route(&mut ways, address));
    ways.finding()
}

/// Whether the sandbox has a way out: then every address is local, and only the devices of the routes tell.
fn is_caught(scene: &Scene) -> bool {
    scene.get("listener").is_some()
}

/// Whether the kernel has a route. Nothing is sent.
fn note_route(ways: &mut Ways, address: IpAddr) {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((address, 80)));
    ways.note(&format!("a route to {address}"), found);
}

/// Devices with routes, other than the loopback.
fn routes_out() -> Vec<String> {
    let table = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let v4 = table("/proc/net/route");
    let v4 = v4.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let v6 = table("/proc/net/ipv6_route");
    let v6 = v6.lines().filter_map(|line| line.split_whitespace().last());
    v4.chain(v6).filter(|device| *device != "lo").map(str::to_owned).collect()
}

pub fn dns(scene: &Scene) -> Finding {
    let Some(port) = scene.get("udp").and_then(|port| port.parse::<u16>().ok()) else {
        return leaked("not judged: the host answers no datagrams");
    };
    let mut ways = Ways::judged(Judge::BySuccess);
    ways.note("a query to the host's loopback", ask(port));
    for server in nameservers() {
        match server.is_loopback() || server.is_unspecified() {
            true => ways.refuse(format!("{server} is on a loopback of its own")),
            false if is_caught(scene) => ways.refuse(format!("queries to {server} are caught")),
            false => note_route(&mut ways, server),
        }
    }
    for path in RESOLVERS.into_iter().filter(|path| Path::new(path).exists()) {
        ways.leak(format!("{path} is there"));
    }
    ways.finding()
}

/// Queries the host's own responder like a resolver.
fn ask(port: u16) -> io::Result<usize> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(LOOPBACK_ANSWER))?;
    socket.connect((Ipv4Addr::LOCALHOST, port))?;
    socket.send(b"sandkeep-probe")?;
    socket.recv(&mut [0; 512])
}

fn nameservers() -> Vec<IpAddr> {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    named.filter_map(|address| address.trim().parse().ok()).collect()
}

pub fn raw_socket() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    let kinds = [
        ("packets", libc::AF_PACKET, libc::SOCK_RAW, 0),
        ("raw IPv4", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
        ("raw IPv6", libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6),
    ];
    for (name, family, kind, protocol) in kinds {
        let arguments = [family, kind, protocol].map(|number| Arg::Number(number.into()));
        ways.note(name, sys::call(libc::SYS_socket, arguments));
    }
    ways.finding()
}
