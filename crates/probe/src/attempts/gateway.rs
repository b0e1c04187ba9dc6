//! A sandbox with a way out, which leads to one name on one port: `allowed`, which is the host's listener on `tcp`. Every
//! other way there, and everywhere else, is refused by the gateway, at once and by its own answer. Nothing is sent to
//! anybody but the host's listener and, if the gateway were broken, addresses that belong to nobody.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use crate::finding::{Finding, Judge, Ways, leaked, not_applicable};
use crate::scene::Scene;

/// What the gateway refuses, it refuses without asking anybody; but the machine may be busy.
const ANSWER: Duration = Duration::from_secs(10);

const RESOLVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
const PROXY: SocketAddr = SocketAddr::new(RESOLVER, 3128);
const DNS: u16 = 53;
const HTTPS: u16 = 443;
/// Reserved for documentation.
const NOBODY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
/// Of the ranges that stand for names: this one stands for none.
const NAMELESS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 19, 255, 254)),
    IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0xffff, 0xfffe)),
];
/// A name with something to tell in it.
const TUNNEL: &str = "c2FuZGtlZXA.tunnel.sandkeep-probe.test";

const A: u16 = 1;
const REFUSED: u8 = 5;
/// Types of records that carry data: A, NS, NULL, TXT, AAAA, SVCB, HTTPS, and everything.
const TYPES: [u16; 8] = [A, 2, 10, 16, 28, 64, 65, 255];

/// The allowed name and the host's port.
fn allowed(scene: &Scene) -> Result<(&str, u16), Finding> {
    let Some(name) = scene.get("allowed") else {
        return Err(not_applicable("the sandbox has no way out"));
    };
    let port = scene.get("tcp").and_then(|port| port.parse().ok());
    Ok((name, port.ok_or_else(|| leaked("not judged: the host has no listener"))?))
}

pub fn names(scene: &Scene) -> Finding {
    let (name, _) = match allowed(scene) {
        Ok(allowed) => allowed,
        Err(finding) => return finding,
    };
    let mut ways = Ways::judged(Judge::BySuccess);
    if !matches!(ask(RESOLVER, name, A), Ok(0)) {
        return leaked("not judged: not even the allowed name has an address");
    }
    let servers = [RESOLVER].into_iter().chain(NOBODY);
    for (server, kind) in servers.flat_map(|server| TYPES.map(|kind| (server, kind))) {
        let way = format!("a query of type {kind} to {server}");
        note_code(&mut ways, &way, ask(server, TUNNEL, kind));
        if ways.has_leak() {
            return ways.finding();
        }
    }
    for server in [RESOLVER, NOBODY[0]] {
        note_code(&mut ways, &format!("a query to {server} by TCP"), ask_by_tcp(server, TUNNEL));
    }
    ways.finding()
}

/// Anything but REFUSED may have come from elsewhere, and silence as well.
fn note_code(ways: &mut Ways, way: &str, code: io::Result<u8>) {
    match code {
        Ok(REFUSED) => ways.refuse(format!("{way}: REFUSED")),
        Ok(code) => ways.leak(format!("{way} was answered with {code}")),
        Err(error) => ways.leak(format!("{way} was not refused: {error}")),
    }
}

fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0x5a, 0x5a, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend([kind.to_be_bytes(), [0, 1]].concat());
    bytes
}

/// The code of a resolver's answer.
fn ask(server: IpAddr, name: &str, kind: u16) -> io::Result<u8> {
    let any: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.connect((server, DNS))?;
    socket.send(&query(name, kind))?;
    let mut answer = [0; 512];
    let len = socket.recv(&mut answer)?;
    code(&answer[..len])
}

fn ask_by_tcp(server: IpAddr, name: &str) -> io::Result<u8> {
    let mut stream = connect(SocketAddr::new(server, DNS))?;
    let query = query(name, A);
    stream.write_all(&[&(query.len() as u16).to_be_bytes(), query.as_slice()].concat())?;
    let mut answer = [0; 2 + 12];
    stream.read_exact(&mut answer)?;
    code(&answer[2..])
}

fn code(answer: &[u8]) -> io::Result<u8> {
    let flags = answer.get(3).ok_or(ErrorKind::InvalidData)?;
    Ok(flags & 0x0f)
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    Ok(stream)
}

pub fn addresses(scene: &Scene) -> Finding {
    let (_, port) = match allowed(scene) {
        Ok(allowed) => allowed,
        Err(finding) => return finding,
    };
    let mut ways = Ways::judged(Judge::BySuccess);
    for address in NOBODY.into_iter().chain(NAMELESS).chain([RESOLVER]) {
        for port in [port, HTTPS, 22] {
            let target = SocketAddr::new(address, port);
            // The gateway accepts first, and then decides.
            let ended = connect(target).and_then(|mut stream| {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: sandkeep-probe.test\r\n\r\n")?;
                stream.read(&mut [0; 64])
            });
            match ended {
                Ok(0) => ways.refuse(format!("{target}: closed")),
                Ok(_) => ways.leak(format!("{target} answered")),
                Err(error) if is_silence(&error) => {
                    ways.leak(format!("a connection to {target} was not refused"));
                }
                Err(error) => ways.refuse(format!("{target}: {error}")),
            }
            if ways.has_leak() {
                return ways.finding();
            }
        }
    }
    ways.finding()
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

pub fn proxy(scene: &Scene) -> Finding {
    let (name, port) = match allowed(scene) {
        Ok(allowed) => allowed,
        Err(finding) => return finding,
    };
    let tunnel =
        |target: &str| status(&format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"));
    // The same listener, so that what is refused below is refused for its name.
    match tunnel(&format!("{name}:{port}")) {
        Ok(200) => {}
        other => return leaked(format!("not judged: the allowed name is not reached: {other:?}")),
    }
    let mut ways = Ways::judged(Judge::BySuccess);
    let hosts = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "0",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "localhost",
        "other.sandkeep-probe.test",
        "192.0.2.1",
        "[2001:db8::1]",
        "198.18.0.1",
        "[fe80::1%25lo]",
    ];
    for host in hosts {
        note_status(&mut ways, &format!("a tunnel to {host}"), tunnel(&format!("{host}:{port}")));
        let get = format!("GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
        note_status(&mut ways, &format!("a request for {host}"), status(&get));
        if ways.has_leak() {
            return ways.finding();
        }
    }
    let other =
        format!("GET http://{name}:{port}/ HTTP/1.1\r\nHost: other.sandkeep-probe.test\r\n\r\n");
    note_status(&mut ways, "another Host", status(&other));
    let user = format!("{name}:{port}@127.0.0.1:{port}");
    note_status(&mut ways, "a name before an @", tunnel(&user));
    note_status(&mut ways, "another port", tunnel(&format!("{name}:{}", port ^ 1)));
    ways.finding()
}

/// What the proxy answers to a request.
fn status(request: &str) -> io::Result<u16> {
    let mut stream = connect(PROXY)?;
    stream.write_all(request.as_bytes())?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    let code = std::str::from_utf8(&head[9..]).ok().and_then(|code| code.parse().ok());
    code.ok_or_else(|| ErrorKind::InvalidData.into())
}

/// Only the gateway itself answers with these: what it refuses, and what it does not understand.
fn note_status(ways: &mut Ways, way: &str, status: io::Result<u16>) {
    match status {
        Ok(code @ (400 | 403)) => ways.refuse(format!("{way}: {code}")),
        Ok(code) => ways.leak(format!("{way} was answered with {code}")),
        Err(error) if is_silence(&error) => ways.leak(format!("{way} was not refused")),
        Err(error) => ways.refuse(format!("{way}: {error}")),
    }
}

pub fn datagrams(scene: &Scene) -> Finding {
    if let Err(finding) = allowed(scene) {
        return finding;
    }
    let mut ways = Ways::judged(Judge::BySuccess);
    let broadcast = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 251));
    for address in NOBODY.into_iter().chain(NAMELESS).chain([broadcast]) {
        // QUIC, time, multicast DNS, and syslog.
        for port in [HTTPS, 123, 5353, 514] {
            let target = SocketAddr::new(address, port);
            match send(target) {
                Err(error) if !is_silence(&error) => ways.refuse(format!("{target}: {error}")),
                Err(_) => ways.leak(format!("a datagram to {target} was not refused")),
                Ok(()) => ways.leak(format!("{target} answered")),
            }
            if ways.has_leak() {
                return ways.finding();
            }
        }
    }
    ways.finding()
}

/// Sends, and waits for an answer. A refusal comes with the sending, or as one.
fn send(target: SocketAddr) -> io::Result<()> {
    let any: IpAddr = match target.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.connect(target)?;
    socket.send(b"sandkeep-probe")?;
    socket.recv(&mut [0; 64]).map(drop)
}
