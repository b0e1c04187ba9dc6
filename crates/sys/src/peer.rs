//! The owner of the other end of a local TCP connection.
//!
//! TCP has no SO_PEERCRED, but on one machine the kernel knows both ends: NETLINK_SOCK_DIAG looks up the peer's own
//! socket by the connection's 4-tuple, seen from its side, and returns its owner.
//!
//! Invariant: an owner is reported only for a socket that a process still holds. The kernel shows orphaned and
//! TIME_WAIT sockets as uid 0, so a stranger who connects, sends a request and closes at once would pass as root; such
//! sockets have inode 0 and count as unowned.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

const NLMSG_HEADER_LEN: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// `struct inet_diag_req_v2`.
const REQUEST_LEN: usize = 56;
/// `struct inet_diag_msg`, up to and including `idiag_inode`.
const ANSWER_LEN: usize = 72;
const UID_AT: usize = NLMSG_HEADER_LEN + 64;
const INODE_AT: usize = NLMSG_HEADER_LEN + 68;

const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// All states: whether a process holds the socket matters more than its state.
const ANY_STATE: u32 = u32::MAX;
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// The user who holds the client's end of a connection between `client` and `server`; `None` if it is no longer held.
/// The addresses are those that the server's own socket reports.
pub fn uid_of_client(client: SocketAddr, server: SocketAddr) -> io::Result<Option<u32>> {
    let diag = open()?;
    send(&diag, &request(client, server), SendFlags::empty())?;
    let mut answer = [0u8; 1024];
    // The kernel answers within `send`, so there is nothing to wait for.
    let (read, _) = recv(&diag, &mut answer, RecvFlags::DONTWAIT)?;
    parse(answer.get(..read).unwrap_or_default())
}

fn open() -> io::Result<OwnedFd> {
    let protocol = Some(netlink::SOCK_DIAG);
    Ok(socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, protocol)?)
}

fn request(client: SocketAddr, server: SocketAddr) -> [u8; NLMSG_HEADER_LEN + REQUEST_LEN] {
    let mut bytes = Vec::with_capacity(NLMSG_HEADER_LEN + REQUEST_LEN);
    bytes.extend(((NLMSG_HEADER_LEN + REQUEST_LEN) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]); // sequence and port: the socket is used once

    // A dual-stack listener sees an IPv4 client as ::ffff:a.b.c.d; the client's socket is IPv4.
    let (source, target) = (client.ip().to_canonical(), server.ip().to_canonical());
    let family = if source.is_ipv4() { AF_INET } else { AF_INET6 };
    bytes.extend([family, IPPROTO_TCP, 0, 0]);
    bytes.extend(ANY_STATE.to_ne_bytes());
    bytes.extend(client.port().to_be_bytes());
    bytes.extend(server.port().to_be_bytes());
    bytes.extend(sixteen_bytes(source));
    bytes.extend(sixteen_bytes(target));
    bytes.extend([0; 4]); // any interface
    bytes.extend(NO_COOKIE);
    bytes.try_into().expect("the fields above add up to the size of the request")
}

fn sixteen_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn parse(answer: &[u8]) -> io::Result<Option<u32>> {
    let short = || io::Error::new(io::ErrorKind::UnexpectedEof, "the answer of sock_diag is short");
    let word =
        |at: usize| answer.get(at..).and_then(<[u8]>::first_chunk::<4>).copied().ok_or_else(short);
    let [low, high, ..] = word(4)?;
    if u16::from_ne_bytes([low, high]) == NLMSG_ERROR {
        let error = i32::from_ne_bytes(word(NLMSG_HEADER_LEN)?);
        return match io::Error::from_raw_os_error(-error) {
            gone if gone.kind() == io::ErrorKind::NotFound => Ok(None),
            other => Err(other),
        };
    }
    if answer.len() < NLMSG_HEADER_LEN + ANSWER_LEN {
        return Err(short());
    }
    let (uid, inode) = (u32::from_ne_bytes(word(UID_AT)?), u32::from_ne_bytes(word(INODE_AT)?));
    Ok((inode != 0).then_some(uid))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).expect("loopback can be bound");
        let client = TcpStream::connect(listener.local_addr().expect("it is bound"))
            .expect("the listener has a backlog");
        let (server, _) = listener.accept().expect("the client is connected");
        (client, server)
    }

    fn ends(server: &TcpStream) -> (SocketAddr, SocketAddr) {
        (server.peer_addr().expect("connected"), server.local_addr().expect("connected"))
    }

    #[test]
    fn a_live_client_is_known_by_its_uid_over_both_families() {
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (client, server) = pair(address);
            let (from, to) = ends(&server);
            assert_eq!(uid_of_client(from, to).expect("sock_diag answers"), Some(own));
            drop(client);
        }
    }

    #[test]
    fn a_client_that_closed_at_once_is_nobody() {
        let (client, server) = pair("127.0.0.1:0");
        let (from, to) = ends(&server);
        drop(client);
        assert_eq!(uid_of_client(from, to).expect("sock_diag answers"), None);
    }
}
