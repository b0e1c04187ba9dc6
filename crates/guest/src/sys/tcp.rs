//! Connects to the sandbox's own loopback.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::{check, owned};

/// A loopback address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loopback {
    V4,
    V6,
}

/// A connecting socket; it is writable when that has succeeded or failed.
pub fn connect_tcp(to: Loopback, port: u16) -> io::Result<OwnedFd> {
    match to {
        Loopback::V4 => {
            // SAFETY: all-zero is a valid sockaddr_in.
            let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            address.sin_family = libc::AF_INET as _;
            address.sin_port = port.to_be();
            address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
            connect(libc::AF_INET, &address)
        }
        Loopback::V6 => {
            // SAFETY: all-zero is a valid sockaddr_in6.
            let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            address.sin6_family = libc::AF_INET6 as _;
            address.sin6_port = port.to_be();
            address.sin6_addr.s6_addr = std::net::Ipv6Addr::LOCALHOST.octets();
            connect(libc::AF_INET6, &address)
        }
    }
}

fn connect<A>(family: c_int, address: &A) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is involved.
    let socket = owned(unsafe { libc::socket(family, kind, 0) })?;
    let (address, len) = (std::ptr::from_ref(address).cast(), size_of::<A>() as libc::socklen_t);
    // SAFETY: the callers pass the address structure of the family.
    match check(unsafe { libc::connect(socket.as_raw_fd(), address, len) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// The result of connecting, once the socket is writable.
pub fn connected(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut code: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `code` and `len` are writable, and as large as they say.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut code).cast(),
            &mut len,
        )
    })?;
    match code {
        0 if address(socket, libc::getsockname)? == address(socket, libc::getpeername)? => {
            // Nobody listens, and the kernel happened to choose the same port as our own: TCP lets such a socket
            // connect to itself.
            Err(io::ErrorKind::ConnectionRefused.into())
        }
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

type Address = [u8; size_of::<libc::sockaddr_in6>()];

/// An address of a connected socket, as bytes for comparison.
fn address(
    socket: BorrowedFd<'_>,
    which: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int,
) -> io::Result<Address> {
    let mut bytes: Address = [0; _];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: both functions write at most `len` bytes.
    check(unsafe { which(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), &mut len) })?;
    Ok(bytes)
}
