//! Unix sockets that carry descriptors, and sockets at paths longer than `sun_path`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, listen,
    recvmsg, sendmsg, socket_with,
};

/// Maximum number of descriptors per message.
pub const FDS_MAX: usize = 32;

/// Sends one message with descriptors.
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} descriptors do not fit one message", fds.len()),
        ));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives one message and its descriptors, close-on-exec. 0 bytes: the peer is gone.
pub fn receive_with_fds(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message =
        recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = ancillary {
            fds.extend(received);
        }
    }
    Ok((message.bytes, fds))
}

/// A path by which this process reaches `name` in the directory, however long its real path is.
pub fn short_path(dir: impl AsFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_fd().as_raw_fd()))
}

/// A listening stream socket at `name` in the directory; an old one is replaced.
pub fn listen_in(dir: impl AsFd, name: &str, backlog: i32) -> io::Result<OwnedFd> {
    let socket = bind_in(dir, name)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// A bound socket at `name` in the directory, on which another process is to listen: so its peers see that process.
pub fn bind_for_other(dir: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    bind_in(dir, name)
}

/// The same as [`listen_in`] for a socket that is visible to others: only the user `owner` can ever connect to it. Accepting never
/// blocks.
pub fn listen_for(dir: impl AsFd, name: &str, owner: u32, backlog: i32) -> io::Result<OwnedFd> {
    let unfinished = format!(".{name}.new");
    let socket = bind_in(&dir, &unfinished)?;
    let (uid, gid) = (rustix::fs::Uid::from_raw(owner), rustix::fs::Gid::from_raw(owner));
    rustix::fs::chownat(&dir, &unfinished, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::chmodat(&dir, &unfinished, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
    listen(&socket, backlog)?;
    rustix::fs::renameat(&dir, &unfinished, &dir, name)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

fn bind_in(dir: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new(short_path(&dir, name))?)?;
    Ok(socket)
}
