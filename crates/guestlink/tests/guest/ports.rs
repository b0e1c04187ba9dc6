//! Connections to ports: the guest only establishes them. It shares the test's network here, so the test is the server.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use guest_proto::{Carrier, FromGuest, VERSION, encode, preface};
use sandkeep_guestlink::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::harness::*;

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect(what);
}

/// Both ends of a connection through the guest.
async fn connection(guest: &TestGuest) -> (Box<dyn ByteStream>, TcpStream) {
    let (listener, port) = listener().await;
    let (dialed, accepted) = tokio::join!(guest.client.dial(port), listener.accept());
    (dialed.unwrap(), accepted.unwrap().0)
}

#[tokio::test]
async fn each_side_can_end_its_half_and_still_listen() {
    let guest = TestGuest::start();
    for ours_first in [true, false] {
        let (mut ours, mut theirs) = connection(&guest).await;
        let mut heard = String::new();
        if ours_first {
            ours.write_all(b"question").await.unwrap();
            ours.shutdown().await.unwrap();
            theirs.read_to_string(&mut heard).await.unwrap();
            theirs.write_all(b" answer").await.unwrap();
            theirs.shutdown().await.unwrap();
            ours.read_to_string(&mut heard).await.unwrap();
        } else {
            theirs.write_all(b"question").await.unwrap();
            theirs.shutdown().await.unwrap();
            ours.read_to_string(&mut heard).await.unwrap();
            ours.write_all(b" answer").await.unwrap();
            ours.shutdown().await.unwrap();
            theirs.read_to_string(&mut heard).await.unwrap();
        }
        assert_eq!(heard, "question answer");
    }
}

#[tokio::test]
async fn a_connection_that_is_dropped_is_closed_for_the_other_side() {
    let guest = TestGuest::start();
    let (ours, mut theirs) = connection(&guest).await;
    drop(ours);
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, theirs.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_closed_port_is_refused_as_such() {
    let guest = TestGuest::start();
    let (listener, port) = listener().await;
    drop(listener);
    let refused = guest.client.dial(port).await.err();
    assert!(
        matches!(refused, Some(GuestError::PortClosed { port: said }) if said == port),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_listens_on_ipv6_alone_is_reached() {
    let guest = TestGuest::start();
    let listener = match TcpListener::bind("[::1]:0").await {
        Ok(listener) => listener,
        Err(error) => return eprintln!("SKIP what_listens_on_ipv6_alone_is_reached: {error}"),
    };
    let port = listener.local_addr().unwrap().port();
    let (dialed, accepted) = tokio::join!(guest.client.dial(port), listener.accept());
    dialed.unwrap().write_all(b"six").await.unwrap();
    let mut heard = String::new();
    accepted.unwrap().0.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "six");
}

#[tokio::test]
async fn a_port_that_does_not_answer_holds_up_nobody_and_leaves_nothing() {
    let guest = TestGuest::start();
    guest.client.ping().await.unwrap();
    until("the guest is done with that", || guest.is_asleep()).await;
    let before = guest.descriptors();
    // A queue of one that nobody empties: the connections after the first ones are never answered.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(1).unwrap();
    let port = full.local_addr().unwrap().port();
    let mut waiting: Vec<_> = (0..20)
        .map(|_| {
            let client = guest.client.clone();
            tokio::spawn(async move { client.dial(port).await.map(drop) })
        })
        .collect();
    until("some wait for an answer", || guest.descriptors() >= before + 10).await;
    let (mut ours, mut theirs) = connection(&guest).await;
    ours.write_all(b"x").await.unwrap();
    assert_eq!(theirs.read_u8().await.unwrap(), b'x');
    for dial in waiting.drain(..) {
        dial.abort();
    }
    drop((ours, theirs));
    until("nothing is left of them", || guest.descriptors() == before).await;
}

#[tokio::test]
async fn the_guest_has_nothing_to_do_with_the_bytes_of_a_connection() {
    let guest = TestGuest::start();
    let (mut ours, mut theirs) = connection(&guest).await;
    until("the guest sleeps", || guest.is_asleep()).await;
    let before = guest.wake_ups();
    let (piece, mut came) = (vec![7; 1 << 20], vec![0; 1 << 20]);
    for _ in 0..16 {
        let (written, read) = tokio::join!(ours.write_all(&piece), theirs.read_exact(&mut came));
        written.unwrap();
        read.unwrap();
        let (written, read) = tokio::join!(theirs.write_all(&piece), ours.read_exact(&mut came));
        written.unwrap();
        read.unwrap();
    }
    assert_eq!(guest.wake_ups(), before, "it slept through all of it");
}

#[tokio::test]
async fn dials_leave_no_memory_and_no_descriptors_in_the_guest() {
    let guest = TestGuest::start();
    guest.client.ping().await.unwrap();
    until("the guest is done with that", || guest.is_asleep()).await;
    let (fresh, before) = (guest.anonymous_kib(), guest.descriptors());
    let (listener, port) = listener().await;
    let mut held = Vec::new();
    for _ in 0..300 {
        let (dialed, accepted) = tokio::join!(guest.client.dial(port), listener.accept());
        held.push((dialed.unwrap(), accepted.unwrap()));
    }
    until("the guest keeps no copy", || guest.descriptors() == before).await;
    let grown = guest.anonymous_kib() - fresh;
    assert!(grown <= 32, "300 open connections cost the guest {grown} KiB");
}

/// A guest that answers every dial with this.
fn lying_guest(answer: Vec<u8>, descriptor: Option<OwnedFd>) -> (GuestClient, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(home.path().join(sandkeep_home::GUEST_SOCKET)).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 1024]).unwrap();
            let fds: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
            sandkeep_sys::socket::send_with_fds(&stream, &answer, &fds).unwrap();
        }
    });
    let directory = std::fs::File::open(home.path()).unwrap().into();
    (GuestClient::new(directory, Arc::new(NoLeaves)).unwrap(), home)
}

#[tokio::test]
async fn only_a_connected_socket_is_taken_from_a_guest() {
    let mut answer = preface(VERSION).to_vec();
    encode(&FromGuest::Dialed { carrier: Carrier::Descriptor }, &mut answer);
    let file = std::fs::File::open("/etc/passwd").unwrap();
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = std::os::unix::net::UnixStream::pair().unwrap().0;
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let given: [Option<OwnedFd>; 6] = [
        None,
        Some(file.into()),
        Some(pipe),
        Some(listening.into()),
        Some(unix.into()),
        Some(datagrams.into()),
    ];
    for descriptor in given {
        let (client, _home) = lying_guest(answer.clone(), descriptor);
        let refused = client.dial(80).await.err();
        assert!(matches!(refused, Some(GuestError::Protocol(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_guest_of_a_build_without_dial_is_not_asked_for_it() {
    let (client, _home) = lying_guest(preface(0).to_vec(), None);
    let refused = client.dial(80).await.err();
    assert!(matches!(refused, Some(GuestError::Version { oldest: 3, .. })), "{refused:?}");
}
