//! In network namespaces made for each test. They need root, and send nothing out of those namespaces.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::*;
use crate::namespace;

/// A bound for things that happen at once, also on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A network namespace like a sandbox's; `None`, with the reason printed, where none can be made.
fn namespace() -> Option<OwnedFd> {
    if !rustix::process::geteuid().is_root() {
        let thread = std::thread::current();
        eprintln!("SKIP {}: not root", thread.name().unwrap_or("egress"));
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = open("/proc", flags, Mode::empty()).expect("/proc");
    let make = move || {
        namespace::enter_network(proc.as_fd()).expect("a namespace");
        namespace::open(proc.as_fd(), "thread-self/ns/net").expect("its descriptor")
    };
    Some(std::thread::spawn(make).join().expect("it is made"))
}

/// Runs something in the namespace as a process without rights there would.
fn inside<T: Send>(network: &OwnedFd, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let in_there = || {
            enter(network.as_fd()).expect("it is not ours");
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).expect("rights can be given up");
            work()
        };
        scope.spawn(in_there).join().expect("nothing failed inside")
    })
}

async fn caught() -> Option<(OwnedFd, Sockets)> {
    let network = namespace()?;
    let sockets = again(&network).await;
    Some((network, sockets))
}

async fn again(network: &OwnedFd) -> Sockets {
    let network = network.try_clone().expect("another descriptor");
    set_up(network).await.expect("this kernel can")
}

fn readable(socket: &OwnedFd) {
    let wait = Timespec { tv_sec: SOON.as_secs().cast_signed(), tv_nsec: 0 };
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&wait)).expect("poll"), 1, "nothing arrives");
}

fn accept(listener: &OwnedFd) -> (TcpStream, SocketAddr) {
    readable(listener);
    let listener = TcpListener::from(listener.try_clone().expect("another descriptor"));
    let (stream, _) = listener.accept().expect("a connection waits");
    stream.set_nonblocking(false).expect("a setting");
    let claimed = stream.local_addr().expect("connected");
    (stream, claimed)
}

fn targets() -> [SocketAddr; 5] {
    let v4 = |a, b, c, d, port| SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), port);
    [
        v4(192, 0, 2, 1, 443),
        v4(198, 18, 0, 1, 3128),
        v4(169, 254, 169, 254, 80),
        SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9)), 22),
        SocketAddr::new(IpAddr::V6(ADDRESS_V6), 53),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_everywhere_arrive_with_their_destination() {
    let Some((network, sockets)) = caught().await else { return };
    let at = sockets.tcp.iter().map(|socket| {
        rustix::net::getsockname(socket).ok().and_then(|at| SocketAddr::try_from(at).ok())
    });
    let ports: Vec<u16> = at.map(|at| at.expect("bound").port()).collect();
    assert!(ports.iter().all(|port| *port == ports[0] && *port > 61_000), "{ports:?}");
    // Asked for on a socket of the other family.
    let mapped = SocketAddr::new(Ipv4Addr::new(203, 0, 113, 7).to_ipv6_mapped().into(), 8080);
    for target in targets().into_iter().chain([mapped]) {
        let mut client =
            inside(&network, || TcpStream::connect_timeout(&target, SOON).expect("caught"));
        let expected = SocketAddr::new(target.ip().to_canonical(), target.port());
        let listener = &sockets.tcp[usize::from(expected.is_ipv6())];
        let (mut stream, claimed) = accept(listener);
        assert_eq!(claimed, expected);
        client.write_all(b"hello").expect("sent");
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).expect("received");
        stream.write_all(&heard).expect("sent back");
        client.read_exact(&mut heard).expect("received");
        let own = client.local_addr().expect("connected").ip().to_canonical();
        assert!([IpAddr::V4(ADDRESS_V4), IpAddr::V6(ADDRESS_V6)].contains(&own), "from {own}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_to_every_resolver_arrive_and_the_answer_is_that_resolvers() {
    let Some((network, sockets)) = caught().await else { return };
    let resolvers: [IpAddr; 3] = [
        Ipv4Addr::new(8, 8, 8, 8).into(),
        ADDRESS_V4.into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 8).into(),
    ];
    for resolver in resolvers {
        let client = inside(&network, || {
            let any: IpAddr = match resolver {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let client = UdpSocket::bind((any, 0)).expect("a port");
            client.set_read_timeout(Some(SOON)).expect("a setting");
            // Only answers from there are received.
            client.connect((resolver, 53)).expect("there is a route");
            client.send(b"query").expect("sent");
            client
        });
        let socket = &sockets.udp[usize::from(resolver.is_ipv6())];
        readable(socket);
        let asked = answer_one(socket);
        assert_eq!(asked, resolver);
        let mut heard = [0; 16];
        let length = client.recv(&mut heard).expect("an answer");
        assert_eq!(&heard[..length], b"answer");
    }
}

/// Answers one query as the gateway does; returns the resolver that was asked.
fn answer_one(socket: &OwnedFd) -> IpAddr {
    use std::mem::MaybeUninit;
    let mut data = [0u8; 64];
    let mut control = [MaybeUninit::<u64>::zeroed(); 16];
    // SAFETY: all zeros is a valid address and a valid message.
    let (mut from, mut message): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of_val(&from) as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the message refers to live buffers of the lengths that it says; the first control message is one of
    // packet information, within what the kernel wrote.
    unsafe {
        assert_eq!(libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0), 5);
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        assert!(!head.is_null(), "without its destination");
        let asked = match (*head).cmsg_level {
            libc::SOL_IP => {
                let info = libc::CMSG_DATA(head).cast::<libc::in_pktinfo>();
                let asked = (*info).ipi_addr;
                // What an answer is sent from.
                (*info).ipi_spec_dst = asked;
                (*info).ipi_ifindex = 0;
                IpAddr::from(Ipv4Addr::from(u32::from_be(asked.s_addr)))
            }
            _ => {
                let info = libc::CMSG_DATA(head).cast::<libc::in6_pktinfo>();
                (*info).ipi6_ifindex = 0;
                IpAddr::from(Ipv6Addr::from((*info).ipi6_addr.s6_addr))
            }
        };
        data[..6].copy_from_slice(b"answer");
        let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 6 };
        message.msg_iov = &raw mut part;
        let sent = libc::sendmsg(socket.as_raw_fd(), &raw const message, 0);
        assert_eq!(sent, 6, "{}", std::io::Error::last_os_error());
        asked
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_else_is_refused_at_once_and_loopback_is_untouched() {
    let Some((network, _sockets)) = caught().await else { return };
    let began = Instant::now();
    inside(&network, || {
        for target in ["192.0.2.1:443", "224.0.0.251:5353", "[2001:db8::1]:123"] {
            let any = if target.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(any).expect("a port");
            let refused = socket.send_to(b"quic", target).expect_err(target);
            let known = [ErrorKind::PermissionDenied, ErrorKind::ConnectionRefused];
            assert!(known.contains(&refused.kind()), "{target}: {refused:?}");
        }
        for local in ["127.0.0.1:80", "[::1]:8080", "0.0.0.0:443", "0.0.0.0:8000"] {
            let server = TcpListener::bind(local).expect("servers have the usual ports");
            let at = server.local_addr().expect("bound");
            let client = TcpStream::connect(at).expect("loopback");
            let (_, peer) = server.accept().expect("it is there");
            assert_eq!(peer, client.local_addr().expect("connected"));
        }
        let refused = UdpSocket::bind("0.0.0.0:53").expect_err("the resolver's own");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        let refused = TcpStream::connect("127.0.0.1:9").expect_err("nobody listens there");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
}

/// When it is sent, or by the answer.
fn query_is_refused() {
    let query = UdpSocket::bind("0.0.0.0:0").expect("a port");
    query.connect("8.8.8.8:53").expect("there is a route");
    query.set_read_timeout(Some(SOON)).expect("a setting");
    let refused = query.send(b"query").and_then(|_| query.recv(&mut [0; 16]));
    let known = [ErrorKind::PermissionDenied, ErrorKind::ConnectionRefused];
    let refused = refused.expect_err("nobody is there");
    assert!(known.contains(&refused.kind()), "{refused:?}");
}

/// Runs something in the namespace as a process that may bind every port.
fn with_every_port<T: Send>(network: &OwnedFd, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let in_there = || {
            enter(network.as_fd()).expect("it is not ours");
            work()
        };
        scope.spawn(in_there).join().expect("nothing failed inside")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_sockets_everything_is_refused_at_once_whoever_takes_their_port() {
    let Some((network, sockets)) = caught().await else { return };
    let at = rustix::net::getsockname(&sockets.tcp[0]).expect("bound");
    let at = SocketAddr::try_from(at).expect("an address");
    drop(sockets);
    let thieves = inside(&network, || {
        // On the listener's port, and on one that somebody asks for.
        let thieves = [at, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 443)]
            .map(|at| TcpListener::bind(at).expect("it is free now"));
        for target in targets() {
            let refused = TcpStream::connect_timeout(&target, SOON).expect_err("nobody is there");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{target}");
        }
        query_is_refused();
        thieves
    });
    let resolver = with_every_port(&network, || UdpSocket::bind("0.0.0.0:53").expect("a port"));
    inside(&network, query_is_refused);
    resolver.set_nonblocking(true).expect("a setting");
    assert_eq!(resolver.recv(&mut [0; 16]).expect_err("no query").kind(), ErrorKind::WouldBlock);
    drop(resolver);
    for thief in thieves {
        thief.set_nonblocking(true).expect("a setting");
        assert_eq!(thief.accept().expect_err("nothing arrives").kind(), ErrorKind::WouldBlock);
    }
    // The next daemon gets another port, and everything again.
    let sockets = again(&network).await;
    let client = inside(&network, || TcpStream::connect_timeout(&targets()[0], SOON));
    assert_eq!(accept(&sockets.tcp[0]).1, targets()[0]);
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_up_again_replaces_the_sockets_that_are_still_open() {
    let Some((network, before)) = caught().await else { return };
    let sockets = again(&network).await;
    let _client =
        inside(&network, || TcpStream::connect_timeout(&targets()[0], SOON).expect("caught"));
    assert_eq!(accept(&sockets.tcp[0]).1, targets()[0]);
    let _client = inside(&network, || {
        let client = UdpSocket::bind("0.0.0.0:0").expect("a port");
        client.send_to(b"query", "8.8.8.8:53").expect("sent");
        client
    });
    readable(&sockets.udp[0]);
    for old in before.tcp.iter().chain(&before.udp) {
        let mut fds = [PollFd::new(old, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&now)).expect("poll"), 0, "an old socket got something");
    }
}

/// The own network is one made for this: without the guard, it is not the machine that would be cut off.
#[test]
fn the_own_network_of_the_daemon_is_refused() {
    let Some(network) = namespace() else { return };
    let there = std::thread::spawn(move || {
        enter(network.as_fd()).expect("not ours yet");
        enter(network.as_fd()).expect_err("it would cut off the machine")
    });
    let refused = there.join().expect("it is refused");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
}

#[test]
fn a_kernel_that_lacks_something_is_described() {
    let lacks = |errno| Unavailable::because(&io::Error::from_raw_os_error(errno)).to_string();
    assert!(lacks(libc::ENOENT).contains("modprobe nft_tproxy"));
    assert!(lacks(libc::EPERM).contains("CAP_NET_ADMIN"));
}

/// Not a test: prints what the set-up costs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn what_it_costs() {
    const ROUNDS: u32 = 200;
    let Some(_) = namespace() else { return };
    let networks: Vec<OwnedFd> = (0..ROUNDS).filter_map(|_| namespace()).collect();
    let mut times: Vec<Duration> = Vec::new();
    for network in &networks {
        let began = Instant::now();
        let sockets = again(network).await;
        times.push(began.elapsed());
        drop(sockets);
    }
    times.sort();
    let at = |share: usize| times[times.len() * share / 100];
    println!("set up: p10 {:?} p50 {:?} p90 {:?}", at(10), at(50), at(90));
}
