//! Unusual kinds of sockets, and options with effects beyond the sandbox's own network.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;

use crate::finding::{Finding, Judge, Ways, leaked};
use crate::sys::{self, Arg, Errno, ROOM};

const IPPROTO_L2TP: i32 = 115;
const IPPROTO_SMC: i32 = 256;

/// A kind, by its name, family, type and protocol.
type Kind = (&'static str, i32, i32, i32);

/// A new socket reaches nothing yet, and disappears with the attempt.
fn make_each(kinds: &[Kind]) -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    for (name, family, kind, protocol) in kinds {
        let arguments = [*family, *kind, *protocol].map(|number| Arg::Number(number.into()));
        ways.note(name, sys::call(libc::SYS_socket, arguments));
    }
    ways.finding()
}

pub fn vsock() -> Finding {
    make_each(&[
        ("a stream", libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        ("datagrams", libc::AF_VSOCK, libc::SOCK_DGRAM, 0),
        ("packets", libc::AF_VSOCK, libc::SOCK_SEQPACKET, 0),
    ])
}

pub fn protocols() -> Finding {
    make_each(&[
        ("SCTP", libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP),
        ("DCCP", libc::AF_INET, libc::SOCK_DCCP, libc::IPPROTO_DCCP),
        ("L2TP", libc::AF_INET, libc::SOCK_DGRAM, IPPROTO_L2TP),
        ("SMC", libc::AF_INET, libc::SOCK_STREAM, IPPROTO_SMC),
        ("UDP-Lite", libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE),
        ("MPTCP", libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP),
        ("TIPC", libc::AF_TIPC, libc::SOCK_STREAM, 0),
        ("AF_ALG", libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
    ])
}

pub fn netlink() -> Finding {
    make_each(&[
        ("events", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT),
        ("audit", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT),
        ("netfilter", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER),
        ("generic", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_GENERIC),
        ("connector", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_CONNECTOR),
    ])
}

/// A call that succeeds without any effect is as good as a refusal.
pub fn buffers() -> Finding {
    let socket = match TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) {
        Ok(socket) => socket,
        Err(error) => return leaked(format!("not judged: no socket to try it on: {error}")),
    };
    let options = [("SO_SNDBUF", libc::SO_SNDBUF), ("SO_RCVBUF", libc::SO_RCVBUF)];
    let mut ways = Ways::judged(Judge::BySuccess);
    for (name, option) in options {
        let before = size(&socket, option);
        let wanted = (64 * 1024 * 1024i32).to_ne_bytes();
        let arguments = [
            Arg::Number(socket.as_raw_fd().into()),
            Arg::Number(libc::SOL_SOCKET.into()),
            Arg::Number(option.into()),
            Arg::Bytes(&wanted),
            Arg::Number(4),
        ];
        let answer = sys::call(libc::SYS_setsockopt, arguments);
        match (before, size(&socket, option)) {
            (Ok(before), Ok(after)) if after > before => {
                ways.leak(format!("{name} went from {before} to {after} bytes"));
            }
            (Ok(_), Ok(after)) => ways.refuse(format!("{name} stays {after}: {answer:?}")),
            (Err(errno), _) | (_, Err(errno)) => {
                ways.leak(format!("not judged: {name} cannot be read: {errno}"));
            }
        }
    }
    ways.finding()
}

fn size(socket: &TcpListener, option: i32) -> Result<i32, Errno> {
    let mut value = [0; ROOM];
    let length = 4i32.to_ne_bytes();
    let arguments = [
        Arg::Number(socket.as_raw_fd().into()),
        Arg::Number(libc::SOL_SOCKET.into()),
        Arg::Number(option.into()),
        Arg::Room(&mut value),
        Arg::Bytes(&length),
    ];
    sys::call(libc::SYS_getsockopt, arguments)?;
    Ok(i32::from_ne_bytes([value[0], value[1], value[2], value[3]]))
}
