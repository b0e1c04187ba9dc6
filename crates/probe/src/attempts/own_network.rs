//! The sandbox's own network namespace, whose rules are not the sandbox's to change.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;

use crate::finding::{Finding, Judge, Ways, not_applicable};
use crate::scene::Scene;
use crate::sys::{self, Arg, Errno, ROOM};

/// The sandbox's own addresses, where its traffic is caught.
const CAUGHT: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 1)),
];
const DNS: u16 = 53;

/// Settings of a network, each with a value that would weaken it.
const SETTINGS: [&str; 3] = [
    "/proc/sys/net/ipv4/ip_unprivileged_port_start",
    "/proc/sys/net/ipv4/ip_nonlocal_bind",
    "/proc/sys/net/ipv4/tcp_rmem",
];

/// Length and attributes of a netlink message follow its head of 16 bytes.
const HEAD_BYTES: usize = 16;
const REQUEST_AND_ACK: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

pub fn rules() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    // Changes of what is not there, or to what is there: the kernel checks the caller's rights first.
    let route = [
        &[2, 32, 0, 0, 255, 4, 254, 2, 0, 0, 0, 0],
        attribute(1, &[192, 0, 2, 77]).as_slice(),
        &attribute(4, &1u32.to_ne_bytes()),
    ]
    .concat();
    let changed = change(libc::NETLINK_ROUTE, &[(libc::RTM_NEWROUTE, &route)]);
    ways.note("a route changed", allowed(changed));
    let address = [&[2, 32, 0, 0, 1, 0, 0, 0], attribute(2, &[192, 0, 2, 77]).as_slice()].concat();
    let gone = change(libc::NETLINK_ROUTE, &[(libc::RTM_DELADDR, &address)]);
    ways.note("an address removed", allowed(gone));
    let nothing = [&[0; 4], 1u32.to_ne_bytes().as_slice(), &[0; 8]].concat();
    ways.note(
        "the loopback changed",
        change(libc::NETLINK_ROUTE, &[(libc::RTM_NEWLINK, &nothing)]),
    );
    let subsystem = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
    let batch = [0, 0, subsystem[0], subsystem[1]];
    let table = [&[1, 0, 0, 0], attribute(1, b"sandkeep-probe\0").as_slice()].concat();
    let removed = ((libc::NFNL_SUBSYS_NFTABLES << 8) | libc::NFT_MSG_DELTABLE) as u16;
    let messages: [(u16, &[u8]); 3] =
        [(BATCH_BEGIN, &batch), (removed, &table), (BATCH_END, &batch)];
    ways.note("a table of the packet filter", allowed(change(libc::NETLINK_NETFILTER, &messages)));
    for path in SETTINGS {
        // What it is already.
        match fs::read(path) {
            Ok(value) => drop(ways.note(path, fs::write(path, value))),
            Err(error) => ways.refuse(format!("{path}: {error}")),
        }
    }
    ways.finding()
}

/// That there is no such thing is said only to somebody who may change it.
fn allowed(answer: Result<(), Errno>) -> Result<(), Errno> {
    match answer {
        Err(error) if [libc::ENOENT, libc::EADDRNOTAVAIL].contains(&error.number()) => Ok(()),
        answer => answer,
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len() as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Asks the kernel for changes of the network; the error is that of its first answer.
fn change(protocol: i32, messages: &[(u16, &[u8])]) -> Result<(), Errno> {
    let kinds = [libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_NONBLOCK, protocol];
    let socket = sys::call(libc::SYS_socket, kinds.map(|number| Arg::Number(number.into())))?;
    let mut bytes = Vec::new();
    for (kind, body) in messages {
        bytes.extend(((HEAD_BYTES + body.len()) as u32).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(REQUEST_AND_ACK.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(*body);
    }
    // It is closed with the attempt.
    let number = || Arg::Number(socket);
    let length = Arg::Number(bytes.len() as i64);
    sys::call(libc::SYS_write, [number(), Arg::Bytes(&bytes), length])?;
    let mut answer = [0; ROOM];
    let room = Arg::Number(ROOM as i64);
    sys::call(libc::SYS_read, [number(), Arg::Room(&mut answer), room])?;
    let code = [answer[16], answer[17], answer[18], answer[19]];
    match i32::from_ne_bytes(code) {
        0 => Ok(()),
        error => Err(Errno::new(-error)),
    }
}

pub fn transparent() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    let options = [
        ("IPv4", CAUGHT[0], libc::SOL_IP, libc::IP_TRANSPARENT),
        ("IPv6", CAUGHT[1], libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
    ];
    for (name, address, level, option) in options {
        let local: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let socket = match TcpListener::bind((local, 0)) {
            Ok(socket) => socket,
            Err(error) => {
                ways.refuse(format!("{name}: there is no such socket: {error}"));
                continue;
            }
        };
        let on = 1i32.to_ne_bytes();
        let arguments = [
            Arg::Number(socket.as_raw_fd().into()),
            Arg::Number(level.into()),
            Arg::Number(option.into()),
            Arg::Bytes(&on),
            Arg::Number(4),
        ];
        ways.note(name, sys::call(libc::SYS_setsockopt, arguments));
    }
    ways.finding()
}

/// The port of the listener at the sandbox's own address, as its kernel shows it.
fn listening() -> Option<u16> {
    const LISTENS: &str = "0A";
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next()?, fields.nth(1)?);
        let port = local.strip_prefix("010012C6:").filter(|_| state == LISTENS)?;
        u16::from_str_radix(port, 16).ok()
    })
}

pub fn listener_port(scene: &Scene) -> Finding {
    let named = scene.get("listener").and_then(|port| port.parse::<u16>().ok());
    let Some(port) = named.or_else(listening) else {
        return not_applicable("the sandbox has no way out");
    };
    let mut ways = Ways::judged(Judge::BySuccess);
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    for address in CAUGHT.into_iter().chain(any) {
        let listener = SocketAddr::new(address, port);
        ways.note(&listener.to_string(), TcpListener::bind(listener));
        let resolver = SocketAddr::new(address, DNS);
        ways.note(&format!("datagrams at {resolver}"), UdpSocket::bind(resolver));
    }
    ways.finding()
}
