//! Which addresses belong to the world at large.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// By which Azure's machines reach what manages them; it looks public and is not.
const AZURE_PLATFORM: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Whether an address is given out to somebody out there. Whatever is this machine, its network, what a
/// cloud tells its machines (169.254.169.254 and the like), or nobody, is not.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(v4: Ipv4Addr) -> bool {
    let [a, b, ..] = v4.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let reserved = a == 0 || a >= 240 || (a == 192 && b == 0) || (a == 198 && (b & !1) == 18);
    !(v4.is_private()
        || v4.is_loopback()
        || v4.is_link_local()
        || v4.is_multicast()
        || v4.is_documentation()
        || shared
        || reserved
        || v4 == AZURE_PLATFORM)
}

/// Only 2000::/3 is given out; in it, 2002::/16 and 2001::/32 wrap addresses of IPv4, as 64:ff9b::/96 does
/// outside of it.
fn is_public_v6(v6: Ipv6Addr) -> bool {
    match v6.segments() {
        [0x2002, ..] | [0x2001, 0x0000 | 0x0db8, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_and_other_inner_networks_are_not_public() {
        for inner in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "168.63.129.16",
            "192.0.0.192",
            "100.100.100.200",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "203.0.113.7",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "fd00:ec2::254",
            "::ffff:10.0.0.1",
            "2002:7f00:1::",
            "2001::1",
            "64:ff9b::a00:1",
        ] {
            assert!(!is_public(inner.parse().expect("an address")), "{inner}");
        }
        for outer in
            ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "2001:4860::1", "100.128.0.1", "172.32.0.1"]
        {
            assert!(is_public(outer.parse().expect("an address")), "{outer}");
        }
    }
}
