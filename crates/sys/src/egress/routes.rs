//! Loopback, with an address of each family and every other address local: whoever connects to one ends up here.

use std::io;

use super::netlink::{Messages, REPLACE, REQUEST};
use super::{ADDRESS_V4, ADDRESS_V6, Families, set};

/// Loopback is the first device of every network namespace.
const LOOPBACK: u32 = 1;

const INET: u8 = libc::AF_INET as u8;
const INET6: u8 = libc::AF_INET6 as u8;
/// It needs no check whether somebody else has the address.
const NO_DUPLICATES_CHECK: u8 = libc::IFA_F_NODAD as u8;

/// Container engines turn IPv6 off for networks that have none.
const IPV6_OFF: [&str; 2] = ["net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/lo/disable_ipv6"];

/// Returns the families that the kernel has.
pub fn set_up() -> io::Result<Families> {
    let mut messages = Messages::default();
    up(&mut messages);
    own_everything(&mut messages, INET, &ADDRESS_V4.octets());
    messages.acknowledge_last();
    messages.send(None)?;
    let v6 = || {
        let mut messages = Messages::default();
        own_everything(&mut messages, INET6, &ADDRESS_V6.octets());
        messages.acknowledge_last();
        messages.send(None)
    };
    let added = match v6() {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            IPV6_OFF.iter().for_each(|name| set(name, "0"));
            v6()
        }
        added => added,
    };
    match added {
        Ok(()) => Ok(Families::Both),
        // A kernel without IPv6 has no such sockets either.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Families::V4),
        Err(error) => Err(error),
    }
}

fn up(messages: &mut Messages) {
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    // Family, type, index, flags, and which of them change.
    let head = [[0; 4], LOOPBACK.to_ne_bytes(), up, up].concat();
    messages.add(libc::RTM_NEWLINK, REQUEST, &head, |_| ());
}

/// The address, and a route that makes all others local, too. With `src` a connection to anywhere comes from the
/// address, and not from where it goes to.
fn own_everything(messages: &mut Messages, family: u8, address: &[u8]) {
    let bits = (address.len() * 8) as u8;
    let head =
        [&[family, bits, NO_DUPLICATES_CHECK, 0], LOOPBACK.to_ne_bytes().as_slice()].concat();
    messages.add(libc::RTM_NEWADDR, REPLACE, &head, |message| {
        message.attribute(libc::IFA_LOCAL, address);
        message.attribute(libc::IFA_ADDRESS, address);
    });
    let scope = match family {
        INET => libc::RT_SCOPE_HOST,
        _ => libc::RT_SCOPE_UNIVERSE,
    };
    // Family, destination and source length, type of service, table, protocol, scope, type, flags.
    let head = [
        family,
        0,
        0,
        0,
        libc::RT_TABLE_LOCAL,
        libc::RTPROT_STATIC,
        scope,
        libc::RTN_LOCAL,
        0,
        0,
        0,
        0,
    ];
    messages.add(libc::RTM_NEWROUTE, REPLACE, &head, |message| {
        message.attribute(libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
        message.attribute(libc::RTA_PREFSRC, address);
    });
}
