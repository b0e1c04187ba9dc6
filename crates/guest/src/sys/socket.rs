//! The listening socket and its connections: accept, receive with descriptors, send.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use guest_proto::LEAF_FDS_MAX;

use super::{check, check_len, owned};

pub fn accept(listen: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: we do not ask for the address.
    owned(unsafe {
        libc::accept4(listen.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
    })
}

/// Connects to the Unix socket with this name in a directory, which need not be below our root. If its queue is full it
/// waits up to `patience`, because a client that only polls never gets in before waiting ones.
pub fn connect_unix_in(
    directory: &OwnedFd,
    name: &[u8],
    patience: Duration,
) -> io::Result<OwnedFd> {
    // The alternative would be a path in /proc, which may be covered.
    //
    // SAFETY: the descriptor is open, the path NUL-terminated; there is no other thread, and children
    // choose their own directory.
    check(unsafe { libc::fchdir(directory.as_raw_fd()) })?;
    let connected = connect_unix(name, patience);
    // SAFETY: as above.
    check(unsafe { libc::chdir(c"/".as_ptr()) })?;
    connected
}

fn connect_unix(path: &[u8], patience: Duration) -> io::Result<OwnedFd> {
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if path.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    address.sun_family = libc::AF_UNIX as _;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = from.cast_signed();
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved.
    let socket = owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    wait_no_longer(socket.as_fd(), patience)?;
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is valid for its length, and ends with a NUL.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    // SAFETY: changes a flag of a socket that is ours.
    check(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    Ok(socket)
}

fn wait_no_longer(socket: BorrowedFd<'_>, patience: Duration) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_usec: patience.subsec_micros().into(),
    };
    let len = size_of::<libc::timeval>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_SNDTIMEO);
    // SAFETY: `time` is valid for its length.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const time).cast(), len)
    })
    .map(drop)
}

/// Shuts down sending; data is still received.
pub fn shut_down_sending(socket: BorrowedFd<'_>) {
    // SAFETY: no memory is involved. It fails only if the other side is gone already.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) };
}

/// Whether the other side has closed both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    There,
    Gone,
}

pub fn peer(socket: BorrowedFd<'_>) -> Peer {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one valid entry; it does not wait.
    unsafe { libc::poll(&mut poll, 1, 0) };
    if poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 { Peer::Gone } else { Peer::There }
}

pub fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `bytes` is readable for its length.
    check_len(unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// A control message with one descriptor.
#[repr(C, align(8))]
struct OneDescriptor([u8; 24]);

/// Sends bytes, and a descriptor with the first of them.
pub fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    let mut control = OneDescriptor([0; _]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    const LEN: u32 = size_of::<RawFd>() as u32;
    // SAFETY: the control area is aligned and has room for a header and one descriptor, which the
    // macros stay within; the kernel only reads what the header points to.
    check_len(unsafe {
        message.msg_controllen = libc::CMSG_SPACE(LEN) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(LEN) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor.as_raw_fd());
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        libc::sendmsg(socket.as_raw_fd(), &message, flags)
    })
}

/// Space for a control message with the maximum number of descriptors of a leaf, aligned for the kernel.
#[repr(C, align(8))]
struct Control([u8; 16 + LEAF_FDS_MAX * size_of::<RawFd>()]);

/// Receives bytes, and appends the descriptors that came with them. The kernel closes those beyond the maximum.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut control = Control([0; _]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: the header points to a buffer and a control area that live through the call.
    let count = check_len(unsafe {
        libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC)
    })?;
    take_descriptors(&message, fds);
    Ok(count)
}

fn take_descriptors(message: &libc::msghdr, fds: &mut Vec<OwnedFd>) {
    // SAFETY: the kernel has filled the control area; the macros walk it within its length, and
    // each descriptor in it is new and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                // Its type differs between C libraries.
                let total: usize = control.cmsg_len as _;
                let len = total - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..len / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}
