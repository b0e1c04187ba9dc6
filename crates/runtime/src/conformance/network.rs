//! The way out: what a sandbox sends is caught, and nothing of it leaves by itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use super::lab::{Failure, Lab, SOON, command, ensure, modest, run, same, soon};
use crate::{Plan, RuntimeError};
use sandkeep_guestlink::Guest;
use sandkeep_sys::egress::{ADDRESS_V4, ADDRESS_V6, Sockets};

/// Reserved for documentation: assigned to nobody.
const SOMEWHERE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
const SOMEWHERE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7));

/// Connects, says something, and prints what comes back or what went wrong.
const CLIENT: &str = "
import socket, sys
try:
    client = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30)
    client.sendall(b'over')
    print(client.recv(100).decode(), end='')
except OSError as error:
    print(type(error).__name__, end='')
";

/// Asks a resolver, and prints its answer or what went wrong.
const QUERY: &str = "
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
client = socket.socket(family, socket.SOCK_DGRAM)
client.settimeout(30)
try:
    client.sendto(b'query', (sys.argv[1], int(sys.argv[2])))
    if len(sys.argv) > 3:
        client.connect((sys.argv[1], int(sys.argv[2])))
        client.send(b'query')
    print(client.recv(100).decode(), end='')
except OSError as error:
    print(type(error).__name__, end='')
";

/// Serves on usual ports of every address, and connects to them on loopback.
const SERVERS: &str = "
import socket
for address, port in [('0.0.0.0', 80), ('127.0.0.1', 443), ('::', 3000), ('::1', 8080), ('0.0.0.0', 8000)]:
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, port))
    server.listen()
    client = socket.create_connection(('::1' if ':' in address else '127.0.0.1', port), timeout=30)
    accepted, peer = server.accept()
    assert peer[:2] == client.getsockname()[:2], (peer, client.getsockname())
print('served', end='')
";

/// Everything that would change, bypass or take over what catches; prints what was possible.
const ATTACK: &str = "
import errno, socket, struct, sys
IP_TRANSPARENT, IPV6_TRANSPARENT, NETFILTER, ROUTE = 19, 75, 12, 0
port = int(sys.argv[1])
def transparent(level, option, family):
    taken = socket.socket(family)
    taken.setsockopt(level, option, 1)
    if taken.getsockopt(level, option) != 1:
        raise OSError('it has no effect')
def route(kind, flags):
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, ROUTE)
    link.settimeout(30)
    # A default route of IPv4 by the first device.
    body = struct.pack('=BBBBBBBBI', 2, 0, 0, 0, 255, 4, 254, 2, 0) + struct.pack('=HHI', 8, 4, 1)
    link.send(struct.pack('=IHHII', 16 + len(body), kind, 5 | flags, 1, 0) + body)
    answer = link.recv(1000)
    code = struct.unpack_from('=i', answer, 16)[0]
    if code:
        raise OSError(-code, 'refused')
def bind(kind, address, port, family=socket.AF_INET):
    taken = socket.socket(family, kind)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind((address, port))
    if kind == socket.SOCK_STREAM:
        taken.listen()
def write(name, value):
    with open('/proc/sys/net/' + name, 'w') as setting:
        setting.write(value)
tries = {
    'a raw socket': lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    'a raw IPv6 socket': lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58),
    'a packet socket': lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300),
    'a ping': lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1).sendto(b'\\x08' + b'\\0' * 15, ('192.0.2.7', 0)),
    'the host of a virtual machine': lambda: socket.socket(40, socket.SOCK_STREAM),
    'a transparent socket': lambda: transparent(socket.SOL_IP, IP_TRANSPARENT, socket.AF_INET),
    'a transparent IPv6 socket': lambda: transparent(41, IPV6_TRANSPARENT, socket.AF_INET6),
    'another route': lambda: route(24, 0x400),
    'no route': lambda: route(25, 0),
    'the tables': lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER).bind((0, 0)) or write_table(),
    'the port of the listener': lambda: bind(socket.SOCK_STREAM, '198.18.0.1', port),
    'the port of the IPv6 listener': lambda: bind(socket.SOCK_STREAM, 'fc00::1', port, socket.AF_INET6),
    'the port of all listeners': lambda: bind(socket.SOCK_STREAM, '0.0.0.0', port),
    'the port of the resolver': lambda: bind(socket.SOCK_DGRAM, '198.18.0.1', 53),
    'the port of all resolvers': lambda: bind(socket.SOCK_DGRAM, '0.0.0.0', 53),
    'the settings': lambda: write('ipv4/ip_unprivileged_port_start', '0'),
}
def write_table():
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER)
    link.settimeout(30)
    begin = struct.pack('=IHHIIBBH', 20, 16, 1, 1, 0, 0, 0, socket.htons(10))
    body = struct.pack('=BBH', 1, 0, 0) + struct.pack('=HH', 13, 1) + b'sandkeep\\0' + b'\\0' * 3
    table = struct.pack('=IHHII', 16 + len(body), 10 << 8 | 2, 5, 2, 0) + body
    end = struct.pack('=IHHIIBBH', 20, 17, 1, 3, 0, 0, 0, socket.htons(10))
    link.send(begin + table + end)
    code = struct.unpack_from('=i', link.recv(1000), 16)[0]
    if code:
        raise OSError(-code, 'refused')
possible = []
for name, attempt in tries.items():
    try:
        attempt()
        possible.append(name)
    except OSError as error:
        pass
print(', '.join(possible) or 'nothing', end='')
";

/// Listens on the port of the former listeners, and on the one that is asked for, for whatever arrives.
const THIEF: &str = "
import select, socket, sys
port = int(sys.argv[1])
thieves = []
for address, port in [('198.18.0.1', port), ('fc00::1', port), ('0.0.0.0', 443), ('fc00::1', 443)]:
    thief = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET)
    try:
        thief.setsockopt(*(41, 75, 1) if ':' in address else (socket.SOL_IP, 19, 1))
    except OSError:
        pass
    thief.bind((address, port))
    thief.listen()
    thieves.append(thief)
said = []
for address in ['192.0.2.7', '2001:db8::7']:
    try:
        socket.create_connection((address, 443), timeout=30)
        said.append('connected')
    except OSError as error:
        said.append(type(error).__name__)
if select.select(thieves, [], [], 0)[0]:
    said.append('stolen')
print(' '.join(said), end='')
";

/// A new running sandbox with a way out, or `None` if the runtime has none and says so.
async fn with_way_out(lab: &Lab<'_>) -> Result<Option<Plan>, Failure> {
    let mut plan = lab.plan(modest()).await;
    plan.network = true;
    let created = lab.runtime().create(&plan).await;
    if lab.runtime().capabilities().network {
        created?;
        lab.runtime().start(&plan).await?;
        return Ok(Some(plan));
    }
    match created {
        Err(RuntimeError::Unsupported { .. }) => {}
        // It could on another machine: here the promises are not tried.
        Err(RuntimeError::NoNetwork { runtime, reason }) => {
            eprintln!("SKIP the way out of {runtime}: {reason}");
        }
        answer => return Err(Failure(format!("a runtime without a way out answers {answer:?}"))),
    }
    let there = lab.found(&plan.id).await?;
    ensure!(there.is_none(), "it was refused, and is listed as {there:?}");
    let answer = lab.runtime().network(&plan.id).await.map(drop);
    ensure!(answer.is_err(), "a runtime without a way out gives sockets");
    Ok(None)
}

/// The sockets of a sandbox as the gateway uses them.
struct Caught {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
}

impl Caught {
    async fn of(lab: &Lab<'_>, plan: &Plan) -> Result<Self, Failure> {
        let Sockets { tcp, udp } = soon("the sockets", lab.runtime().network(&plan.id)).await??;
        let listener = |socket: OwnedFd| TcpListener::from_std(socket.into());
        let resolver = |socket: OwnedFd| UdpSocket::from_std(socket.into());
        let broken = |error| Failure(format!("a socket does not suit: {error}"));
        Ok(Self {
            tcp: tcp.into_iter().map(listener).collect::<Result<_, _>>().map_err(broken)?,
            udp: udp.into_iter().map(resolver).collect::<Result<_, _>>().map_err(broken)?,
        })
    }

    fn port(&self) -> Result<u16, Failure> {
        let mut ports = Vec::new();
        for listener in &self.tcp {
            let at = listener.local_addr().map_err(|error| Failure(error.to_string()))?;
            ensure!([ADDRESS_V4.into(), IpAddr::V6(ADDRESS_V6)].contains(&at.ip()), "at {at}");
            ports.push(at.port());
        }
        ensure!(
            ports.iter().all(|port| *port == ports[0] && *port > 61_000),
            "the listeners are at the ports {ports:?}"
        );
        Ok(ports[0])
    }

    /// Has a connection made inside, answers it, and checks both ends.
    async fn connects(&self, guest: &dyn Guest, target: SocketAddr) -> Result<(), Failure> {
        let listener = &self.tcp[usize::from(target.is_ipv6())];
        let serve = async {
            let (mut stream, _) = listener.accept().await?;
            let claimed = stream.local_addr()?;
            let mut heard = [0; 4];
            stream.read_exact(&mut heard).await?;
            stream.write_all(&heard).await?;
            Ok::<_, std::io::Error>((claimed, heard))
        };
        let (address, port) = (target.ip().to_string(), target.port().to_string());
        let words = [address.as_str(), &port];
        let said = python(guest, "user", CLIENT, &words);
        let (served, said) = tokio::join!(tokio::time::timeout(SOON, serve), said);
        same(&format!("what a client of {target} says"), said?.as_str(), "over")?;
        let served = served.map_err(|_| Failure(format!("{target} did not arrive")))?;
        let (claimed, heard) = served.map_err(|error| Failure(format!("{target}: {error}")))?;
        same("the claimed destination", claimed, target)?;
        same("what arrives", heard, *b"over")
    }

    /// Has a query made inside, and answers it.
    async fn resolves(&self, guest: &dyn Guest, resolver: IpAddr) -> Result<(), Failure> {
        let socket = &self.udp[usize::from(resolver.is_ipv6())];
        let serve = async {
            let mut heard = [0; 5];
            let (length, from) = socket.recv_from(&mut heard).await?;
            socket.send_to(b"answer", from).await?;
            Ok::<_, std::io::Error>((length, heard))
        };
        let address = resolver.to_string();
        let words = [address.as_str(), "53"];
        let said = python(guest, "user", QUERY, &words);
        let (served, said) = tokio::join!(tokio::time::timeout(SOON, serve), said);
        let said = said?;
        let served =
            served.map_err(|_| Failure(format!("a query to {resolver} did not arrive: {said}")))?;
        let served = served.map_err(|error| Failure(format!("{resolver}: {error}")))?;
        same("the query", served, (5, *b"query"))?;
        same(&format!("what a client of {resolver} says"), said.as_str(), "answer")
    }
}

async fn python(
    guest: &dyn Guest,
    user: &str,
    script: &str,
    arguments: &[&str],
) -> Result<String, Failure> {
    let words = [&["/usr/bin/python3", "-c", script], arguments].concat();
    let mut request = command(&words);
    request.user = user.to_owned();
    request.timeout = Some(Duration::from_secs(40));
    let said = run(guest, request).await?;
    ensure!(said.stderr.is_empty(), "a script complains: {}", said.stderr);
    Ok(said.stdout)
}

pub(super) async fn connections_and_queries_to_everywhere_are_caught(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let Some(plan) = with_way_out(lab).await? else { return Ok(()) };
    let caught = Caught::of(lab, &plan).await?;
    caught.port()?;
    let guest = lab.runtime().connect(&plan.id).await?;
    let metadata = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));
    for (address, port) in
        [(SOMEWHERE_V4, 443), (SOMEWHERE_V6, 22), (metadata, 80), (ADDRESS_V4.into(), 3128)]
    {
        caught.connects(&*guest, SocketAddr::new(address, port)).await?;
    }
    for resolver in [IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)), ADDRESS_V4.into(), SOMEWHERE_V6] {
        caught.resolves(&*guest, resolver).await?;
    }
    Ok(())
}

pub(super) async fn everything_else_is_refused_at_once_and_loopback_is_its_own(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let Some(plan) = with_way_out(lab).await? else { return Ok(()) };
    let _caught = Caught::of(lab, &plan).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    let refused = ["PermissionError", "ConnectionRefusedError"];
    for address in [SOMEWHERE_V4, SOMEWHERE_V6] {
        let said = soon(
            "a refusal",
            python(&*guest, "user", QUERY, &[&address.to_string(), "443", "again"]),
        )
        .await??;
        ensure!(refused.contains(&said.as_str()), "a datagram to {address}:443 ends with {said:?}");
    }
    let said = soon("loopback", python(&*guest, "user", SERVERS, &[])).await??;
    same("what servers inside say", said.as_str(), "served")
}

pub(super) async fn nobody_inside_changes_what_catches(lab: &Lab<'_>) -> Result<(), Failure> {
    let Some(plan) = with_way_out(lab).await? else { return Ok(()) };
    let caught = Caught::of(lab, &plan).await?;
    let port = caught.port()?.to_string();
    let guest = lab.runtime().connect(&plan.id).await?;
    let users: &[&str] =
        if lab.runtime().capabilities().any_user { &["user", "root"] } else { &["user"] };
    for user in users {
        let possible = python(&*guest, user, ATTACK, &[&port]).await?;
        same(&format!("what is possible as {user}"), possible.as_str(), "nothing")?;
        caught.connects(&*guest, SocketAddr::new(SOMEWHERE_V4, 443)).await?;
    }
    Ok(())
}

pub(super) async fn without_the_sockets_everything_out_is_refused_at_once(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let Some(plan) = with_way_out(lab).await? else { return Ok(()) };
    let guest = lab.runtime().connect(&plan.id).await?;
    let port = Caught::of(lab, &plan).await?.port()?.to_string();
    // The sockets are closed: the daemon is gone, or does not want them.
    let said = soon("a refusal", python(&*guest, "user", THIEF, &[&port])).await??;
    let refused = "ConnectionRefusedError ConnectionRefusedError";
    same("what is said of connections out", said.as_str(), refused)?;
    let said =
        soon("a refusal", python(&*guest, "user", QUERY, &["8.8.8.8", "53", "again"])).await??;
    let known = ["PermissionError", "ConnectionRefusedError"];
    ensure!(known.contains(&said.as_str()), "a query ends with {said:?}");
    let caught = Caught::of(lab, &plan).await?;
    caught.connects(&*guest, SocketAddr::new(SOMEWHERE_V4, 443)).await?;
    caught.resolves(&*guest, SOMEWHERE_V4).await
}

pub(super) async fn new_sockets_replace_those_before_and_a_start_takes_none_away(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let Some(plan) = with_way_out(lab).await? else { return Ok(()) };
    let _before = Caught::of(lab, &plan).await?;
    let caught = Caught::of(lab, &plan).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    let target = SocketAddr::new(SOMEWHERE_V4, 443);
    caught.connects(&*guest, target).await?;
    caught.resolves(&*guest, SOMEWHERE_V4).await?;
    lab.runtime().stop(&plan.id, Duration::ZERO).await?;
    let stopped = lab.runtime().network(&plan.id).await.map(drop);
    let known = matches!(stopped, Err(RuntimeError::NotRunning { .. }));
    ensure!(known, "the network of a stopped sandbox is {stopped:?}");
    lab.runtime().start(&plan).await?;
    let caught = Caught::of(lab, &plan).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    caught.connects(&*guest, target).await
}
