//! The way out of a sandbox, as far as the kernel is concerned: whatever the sandbox sends out of its network namespace
//! is caught there, and arrives at sockets that were made in the namespace and are held by the daemon.
//!
//! The namespace keeps no device but its loopback, so nothing can leave it. All addresses are local there; an nftables
//! table, without connection tracking, gives each connection and each DNS query to one of the sockets, and refuses
//! everything else at once. So does it when the sockets are closed. The destination is only the sandbox's claim.
//!
//! ```text
//! process ──connect(1.2.3.4:443)──▶ lo ──tproxy──▶ listener   getsockname() = 1.2.3.4:443
//!         ──sendto(8.8.8.8:53)────▶ lo ──tproxy──▶ resolver   IP_PKTINFO   = 8.8.8.8
//! ```

#![expect(unsafe_code, reason = "unshare and the ioctl of namespaces have no safe wrappers")]

mod netlink;
mod routes;
mod sockets;
mod table;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use tokio::sync::oneshot;

use super::namespace::NETWORK_LIMITS;
use super::pidfd;

/// The sandbox's own addresses. No name is ever mapped to them.
pub const ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 1);

/// Settings of the namespace besides [`NETWORK_LIMITS`]. Connections of MPTCP and of
/// TCP Fast Open do not begin with the packets that the table expects. Every server inside may have the usual ports, but
/// nobody the resolver's: a later daemon could not have it back.
const SETTINGS: [(&str, &str); 3] = [
    ("net/ipv4/ip_unprivileged_port_start", "54"),
    ("net/ipv4/tcp_fastopen", "0"),
    ("net/mptcp/enabled", "0"),
];

const STACK_BYTES: usize = 128 * 1024;

/// The sockets where everything arrives that a sandbox sends out. All are non-blocking.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Listening, for IPv4 and IPv6. A connection's own address (`getsockname`) is where the sandbox wanted to go.
    pub tcp: Vec<OwnedFd>,
    /// DNS queries, for IPv4 and IPv6. A datagram's original destination is its IP_PKTINFO or IPV6_PKTINFO, which is
    /// also the address that an answer has to be sent from.
    pub udp: Vec<OwnedFd>,
}

/// The network namespace of a running process.
pub fn network_of(process: impl AsFd) -> io::Result<OwnedFd> {
    let gone = || io::Error::new(io::ErrorKind::NotFound, "its first process has ended");
    let number = pidfd::number(&process)?.ok_or_else(gone)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let network = open(format!("/proc/{number}/ns/net"), flags, Mode::empty())?;
    // Its pid may have been reused before the namespace was opened, but not if it is alive afterwards.
    if pidfd::has_ended(&process) { Err(gone()) } else { Ok(network) }
}

/// Catches what is sent out of a network namespace, on a thread that enters it. In a namespace where this was done
/// before, the new sockets replace those before in one step. The caller needs CAP_SYS_ADMIN and CAP_NET_ADMIN over the
/// namespace, which must not be the caller's own.
pub async fn set_up(network: OwnedFd) -> io::Result<Sockets> {
    let (done, result) = oneshot::channel();
    // The thread never comes back from the namespace, so it is nobody else's.
    let thread = std::thread::Builder::new().name("caught".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || {
        // Nobody waits for sockets that are not wanted any more; they are closed.
        let _ = done.send(enter(network.as_fd()).and_then(|()| set_up_here()));
    })?;
    result.await.unwrap_or_else(|_| Err(io::Error::other("the thread in its network panicked")))
}

/// The same in a single-threaded process that owns the namespace's user namespace, and enters both for good.
pub fn set_up_as_owner(network: BorrowedFd<'_>) -> io::Result<Sockets> {
    let users = owner(network)?;
    match move_into_link_name_space(users.as_fd(), Some(LinkNameSpaceType::User)) {
        // We are there already.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    enter(network)?;
    // A tool that makes its own network does not limit it.
    for (name, value) in NETWORK_LIMITS {
        set(&name.replace('.', "/"), value);
    }
    set_up_here()
}

/// Why a sandbox cannot have a way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error(
        "the kernel cannot hand connections on ({error}); it needs nft_tproxy and nft_reject_inet \
         (modprobe nft_tproxy nft_reject_inet, or CONFIG_NFT_TPROXY and CONFIG_NFT_REJECT_INET)"
    )]
    Kernel { error: String },
    #[error("the daemon may not set up networks ({error}); it needs CAP_NET_ADMIN")]
    Rights { error: String },
    #[error("setting up a network failed: {error}")]
    Other { error: String },
}

impl Unavailable {
    /// By the error of an attempt.
    pub fn because(error: &io::Error) -> Self {
        let (number, error) = (error.raw_os_error(), error.to_string());
        match number {
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => Self::Kernel { error },
            Some(libc::EPERM | libc::EACCES) => Self::Rights { error },
            _ => Self::Other { error },
        }
    }
}

/// Whether this kernel can catch what a sandbox sends out, tried once, by root; an error says what it lacks.
pub fn available() -> Result<(), &'static Unavailable> {
    static TRIED: OnceLock<Option<Unavailable>> = OnceLock::new();
    let refused = TRIED.get_or_init(|| {
        let tried = std::thread::Builder::new().name("caught".to_owned()).spawn(try_out);
        let tried = tried.map(std::thread::JoinHandle::join);
        let tried =
            tried.and_then(|joined| joined.unwrap_or_else(|_| Err(io::Error::other("panic"))));
        tried.err().map(|error| Unavailable::because(&error))
    });
    refused.as_ref().map_or(Ok(()), Err)
}

/// Tries everything in a network namespace that ends with the calling thread.
pub fn try_out() -> io::Result<()> {
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
    set_up_here().map(drop)
}

/// Refuses the caller's own network: in the host's the rules would cut off the machine.
fn enter(network: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let own = rustix::fs::fstat(open("/proc/thread-self/ns/net", flags, Mode::empty())?)?;
    let theirs = rustix::fs::fstat(network)?;
    if (own.st_dev, own.st_ino) == (theirs.st_dev, theirs.st_ino) {
        let what = "the sandbox is in the daemon's own network";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(move_into_link_name_space(network, Some(LinkNameSpaceType::Network))?)
}

/// Everything, in the network namespace of the calling thread.
fn set_up_here() -> io::Result<Sockets> {
    for (name, value) in SETTINGS {
        set(name, value);
    }
    let families = routes::set_up()?;
    let made = sockets::make(families)?;
    table::replace(made.port)?;
    Ok(made.sockets)
}

/// If settings are not writable, for example in a container, or the kernel has no such thing, its own apply.
fn set(name: &str, value: &str) {
    let _ = fs::write(format!("/proc/sys/{name}"), value);
}

/// Which addresses this kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Families {
    V4,
    Both,
}

/// `_IO(0xb7, 1)`.
const NS_GET_USERNS: libc::c_ulong = 0xb701;

/// The user namespace that a namespace belongs to.
fn owner(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, close-on-exec; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
