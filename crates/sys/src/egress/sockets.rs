//! The sockets where everything arrives.
//!
//! They are transparent: their connections keep the address that the sandbox asked for, and answers come from there. The
//! table hands traffic only to transparent sockets, which nobody inside can make.

#![expect(unsafe_code, reason = "setsockopt for IPV6_TRANSPARENT and packet information")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::{ADDRESS_V4, ADDRESS_V6, Families, Sockets};
use sandkeep_core::limits;

/// Above the ports that the kernel chooses by itself, so that hardly anybody inside misses one.
const PORTS: std::ops::RangeInclusive<u16> = 61_001..=65_535;
const DNS: u16 = 53;

pub struct Made {
    pub sockets: Sockets,
    /// That of all listeners.
    pub port: u16,
}

pub fn make(families: Families) -> io::Result<Made> {
    let addresses: &[IpAddr] = match families {
        Families::V4 => &[IpAddr::V4(ADDRESS_V4)],
        Families::Both => &[IpAddr::V4(ADDRESS_V4), IpAddr::V6(ADDRESS_V6)],
    };
    let resolvers = addresses.iter().map(|address| resolver(*address));
    let udp = resolvers.collect::<io::Result<Vec<_>>>()?;
    let (port, tcp) = listeners(addresses)?;
    Ok(Made { sockets: Sockets { tcp, udp }, port })
}

/// On one port, of those that nobody inside has taken. The one of an earlier daemon may have been taken since.
fn listeners(addresses: &[IpAddr]) -> io::Result<(u16, Vec<OwnedFd>)> {
    for port in PORTS {
        let made = addresses.iter().map(|address| listener(SocketAddr::new(*address, port)));
        match made.collect::<io::Result<Vec<_>>>() {
            Ok(made) => return Ok((port, made)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    let taken = format!("all ports from {} on are taken inside", PORTS.start());
    Err(io::Error::new(io::ErrorKind::AddrInUse, taken))
}

fn listener(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = transparent(address.ip(), SocketType::STREAM)?;
    // Inherited by the connections.
    sockopt::set_socket_recv_buffer_size(&socket, limits::CAUGHT_RECEIVE_BYTES)?;
    bind(&socket, &address)?;
    listen(&socket, limits::CAUGHT_BACKLOG)?;
    Ok(socket)
}

fn resolver(address: IpAddr) -> io::Result<OwnedFd> {
    let socket = transparent(address, SocketType::DGRAM)?;
    sockopt::set_socket_recv_buffer_size(&socket, limits::CAUGHT_QUERIES_BYTES)?;
    match address {
        IpAddr::V4(_) => turn_on(&socket, libc::SOL_IP, libc::IP_PKTINFO)?,
        IpAddr::V6(_) => turn_on(&socket, libc::SOL_IPV6, libc::IPV6_RECVPKTINFO)?,
    }
    bind(&socket, &SocketAddr::new(address, DNS))?;
    Ok(socket)
}

fn transparent(address: IpAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, kind, flags, None)?;
    // A server inside can then listen on a port that a connection was made to, and queries go to the newest resolver
    // while an earlier one is still open.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    match address {
        IpAddr::V4(_) => turn_on(&socket, libc::SOL_IP, libc::IP_TRANSPARENT)?,
        IpAddr::V6(_) => {
            sockopt::set_ipv6_v6only(&socket, true)?;
            turn_on(&socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT)?;
        }
    }
    Ok(socket)
}

fn turn_on(socket: &OwnedFd, level: libc::c_int, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: `on` is a live integer of the length that is said.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), length)
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
