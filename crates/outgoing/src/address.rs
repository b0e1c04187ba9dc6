//! Which addresses are public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// The address of Azure's platform services for virtual machines; it looks public and is not.
const AZURE_PLATFORM: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Any port will do.
const DISCARD: u16 = 9;

/// Whether an address is assigned on the public internet. Addresses of this machine, its network, a cloud's metadata
/// service (169.254.169.254 and the like), and unassigned ones are not.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

/// Whether an address belongs to this machine, even if it is public: its services are not meant for whoever chose the
/// URL. The kernel is asked for the source address of a route there; nothing is sent.
pub fn is_own(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, DISCARD))?;
        socket.local_addr()
    });
    // Without a route the address cannot be reached at all.
    from.is_ok_and(|from| from.ip() == address || from.ip().is_loopback())
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

/// Only 2000::/3 is assigned; within it, 2002::/16 and 2001::/32 embed IPv4 addresses, as 64:ff9b::/96 does outside of
/// it.
fn is_public_v6(v6: Ipv6Addr) -> bool {
    match v6.segments() {
        [0x2002, ..] | [0x2001, 0x0000 | 0x0db8, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a separate network namespace, whose only interface has a public address.
    #[test]
    fn a_public_address_of_this_machine_is_its_own() {
        const INSIDE: &str = "SANDKEEP_TEST_OWN_ADDRESS";
        if let Ok(own) = std::env::var(INSIDE) {
            let own = own.parse().expect("an address");
            return assert!(is_public(own) && is_own(own), "{own}");
        }
        if !is_root() {
            return eprintln!("SKIP a_public_address_of_this_machine_is_its_own: needs root");
        }
        let name = "address::tests::a_public_address_of_this_machine_is_its_own";
        for own in ["9.8.7.6", "2606:4700::42"] {
            let script =
                "ip link set lo up && ip addr add \"$1\" dev lo && exec \"$0\" --exact \"$2\"";
            let ran = std::process::Command::new("unshare")
                .args(["--net", "sh", "-c", script])
                .arg(std::env::current_exe().expect("this program"))
                .args([own, name])
                .env(INSIDE, own)
                .output()
                .expect("unshare runs");
            assert!(ran.status.success(), "{own}: {}", String::from_utf8_lossy(&ran.stdout));
            assert!(String::from_utf8_lossy(&ran.stdout).contains("1 passed"), "it did not run");
        }
    }

    fn is_root() -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        status.lines().any(|line| line.starts_with("Uid:\t0\t"))
    }

    #[test]
    fn this_machine_knows_its_own_addresses() {
        for own in ["127.0.0.1", "127.1.2.3"] {
            assert!(is_own(own.parse().expect("an address")), "{own}");
        }
        for other in ["8.8.8.8", "2606:4700::1111"] {
            assert!(!is_own(other.parse().expect("an address")), "{other}");
        }
    }

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
