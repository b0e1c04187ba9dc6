//! Datagrams whose receiver answers from the address that was asked, whichever it is: for sockets that receive for
//! addresses which are not their own.
//!
//! The socket has IP_PKTINFO or IPV6_RECVPKTINFO, or, where a rule redirected the datagram to another address,
//! IP_RECVORIGDSTADDR or IPV6_RECVORIGDSTADDR; of both, the original destination counts. To send from a foreign
//! address it has IP_TRANSPARENT or IPV6_TRANSPARENT.

#![expect(unsafe_code, reason = "messages about packets have no safe wrappers")]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

/// A datagram that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub len: usize,
    /// Its data did not fit the buffer; the rest is lost.
    pub is_cut: bool,
    pub from: SocketAddr,
    /// The address it was sent to. `None` if the kernel did not say.
    pub to: Option<IpAddr>,
}

/// Space for the two messages that are read, and more.
const CONTROL_BYTES: usize = 256;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Receives one datagram.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    // SAFETY: both are plain C structures for which all zeros is a value.
    let (mut from, mut message): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (zeroed(), zeroed()) };
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = socket_len(size_of::<libc::sockaddr_storage>());
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: every pointer of the message is to memory of the given length that lives until the call returns.
    let read = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, 0) };
    let len = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    let from = address(&from).ok_or(io::ErrorKind::InvalidData)?;
    let is_cut = message.msg_flags & libc::MSG_TRUNC != 0;
    Ok(Received { len, is_cut, from, to: destination(&message) })
}

/// Sends one datagram from this address, on whatever interface the route there is.
pub fn send(socket: impl AsFd, bytes: &[u8], to: SocketAddr, from: IpAddr) -> io::Result<usize> {
    let (mut name, name_len) = storage(to);
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a plain C structure for which all zeros is a value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = name_len;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    match from {
        IpAddr::V4(v4) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from(v4).to_be() },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            put(&mut message, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        IpAddr::V6(v6) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: v6.octets() },
                ipi6_ifindex: 0,
            };
            put(&mut message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
    }
    // SAFETY: every pointer of the message is to memory of the given length that lives until the call returns, and
    // the kernel does not write to it.
    let sent = unsafe {
        libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Makes `value` the only control message of `message`, whose space is enough for the largest.
fn put<T: Copy>(message: &mut libc::msghdr, level: i32, kind: i32, value: T) {
    let len = u32::try_from(size_of::<T>()).expect("some bytes");
    // SAFETY: the two functions compute lengths. The header is the first of a control space of CONTROL_BYTES, which is
    // aligned for it and larger than CMSG_SPACE of each `T` used here; the data behind it is written unaligned.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const *message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(len) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        message.msg_controllen = libc::CMSG_SPACE(len) as _;
    }
}

/// Where the datagram was sent to.
fn destination(message: &libc::msghdr) -> Option<IpAddr> {
    let (mut original, mut local) = (None, None);
    // SAFETY: the kernel filled the control space of this message and set its length; the macros stay within it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: the header is within the control space. Each kind of message has at least the bytes of the structure
        // that is read, which is read unaligned.
        unsafe {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info: libc::in_pktinfo = data.cast::<libc::in_pktinfo>().read_unaligned();
                    local = Some(v4(info.ipi_addr).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    local = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR) => {
                    let to = data.cast::<libc::sockaddr_in>().read_unaligned();
                    original = Some(v4(to.sin_addr).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR) => {
                    let to = data.cast::<libc::sockaddr_in6>().read_unaligned();
                    original = Some(Ipv6Addr::from(to.sin6_addr.s6_addr).into());
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    original.or(local)
}

fn v4(address: libc::in_addr) -> Ipv4Addr {
    Ipv4Addr::from(u32::from_be(address.s_addr))
}

fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which structure the storage holds; the storage is large enough for all.
            let v = unsafe { (&raw const *storage).cast::<libc::sockaddr_in>().read() };
            Some(SocketAddrV4::new(v4(v.sin_addr), u16::from_be(v.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v = unsafe { (&raw const *storage).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v.sin6_addr.s6_addr);
            let port = u16::from_be(v.sin6_port);
            Some(SocketAddrV6::new(ip, port, v.sin6_flowinfo, v.sin6_scope_id).into())
        }
        _ => None,
    }
}

fn storage(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let len = match address {
        SocketAddr::V4(v4) => {
            let value = libc::sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger than, and aligned for, the address of every family.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in>().write(value) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let value = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in6>().write(value) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    // SAFETY: it was zeroed as a whole, for which it has a value, and then partly written.
    (unsafe { storage.assume_init() }, socket_len(len))
}

fn socket_len(len: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(len).expect("a socket address has some bytes")
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        // Every address of 127.0.0.0/8 is this machine's, so that no privilege is needed.
        let server = UdpSocket::bind("0.0.0.0:0").expect("a server");
        let on = 1_i32;
        // SAFETY: the option's value is an integer that lives until the call returns.
        let set = unsafe {
            let (value, len) = ((&raw const on).cast(), socket_len(size_of::<i32>()));
            libc::setsockopt(server.as_raw_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, value, len)
        };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        let port = server.local_addr().expect("an address").port();
        for asked in ["127.0.0.1", "127.4.5.6"] {
            let asked: IpAddr = asked.parse().expect("an address");
            let client = UdpSocket::bind("127.0.0.1:0").expect("a client");
            client.send_to(b"question", (asked, port)).expect("sent");
            let mut buffer = [0; 4];
            let received = receive(&server, &mut buffer).expect("it is there");
            assert_eq!((&buffer[..received.len], received.is_cut), (&b"ques"[..], true));
            assert_eq!(received.from, client.local_addr().expect("an address"));
            assert_eq!(received.to, Some(asked));
            send(&server, b"answer", received.from, asked).expect("sent");
            let mut buffer = [0; 64];
            let (len, from) = client.recv_from(&mut buffer).expect("an answer");
            assert_eq!((&buffer[..len], from.ip()), (&b"answer"[..], asked));
        }
    }
}
