//! One entry of `outgoing_allow`: a host name, or a network, each with one port or all.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A destination that may be called although its address is not public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    place: Destination,
    /// `None` means every port.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Destination {
    /// Lower case; whatever its address is.
    Host(String),
    Network {
        address: IpAddr,
        prefix: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is neither a host (registry.internal, 127.0.0.1:5000, [::1]:5000) nor a network (10.0.0.0/8)"
)]
pub struct InvalidAllowed {
    text: String,
}

impl Allowed {
    /// Whether it covers a host, as named in a URL, with this address and port.
    pub(super) fn covers(&self, host: &str, address: IpAddr, port: u16) -> bool {
        let here = match &self.place {
            Destination::Host(name) => name == host,
            Destination::Network { address: network, prefix } => is_in(address, *network, *prefix),
        };
        here && self.port.is_none_or(|only| only == port)
    }
}

fn is_in(address: IpAddr, network: IpAddr, prefix: u8) -> bool {
    match (address.to_canonical(), network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let apart = address.to_bits() ^ network.to_bits();
            apart.leading_zeros() >= u32::from(prefix)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let apart = address.to_bits() ^ network.to_bits();
            apart.leading_zeros() >= u32::from(prefix)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

impl FromStr for Allowed {
    type Err = InvalidAllowed;

    fn from_str(text: &str) -> Result<Self, InvalidAllowed> {
        let invalid = || InvalidAllowed { text: text.to_owned() };
        if let Some((address, prefix)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| invalid())?;
            let prefix: u8 = prefix.parse().map_err(|_| invalid())?;
            let place = Destination::Network { address, prefix };
            return if prefix <= bits(address) {
                Ok(Self { place, port: None })
            } else {
                Err(invalid())
            };
        }
        let (host, port) = split_port(text).ok_or_else(invalid)?;
        let place = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => Destination::Network { address, prefix: bits(address) },
            Err(_) if is_name(host) => Destination::Host(host.to_ascii_lowercase()),
            Err(_) => return Err(invalid()),
        };
        Ok(Self { place, port })
    }
}

fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// `None` if the port is invalid.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    // More than one colon outside of brackets is an IPv6 address without a port.
    let bare_v6 = !text.starts_with('[') && text.matches(':').count() > 1;
    match text.rsplit_once(':') {
        Some((host, port)) if !bare_v6 && !port.ends_with(']') => {
            Some((host, Some(port.parse().ok()?)))
        }
        _ => Some((text, None)),
    }
}

fn is_name(host: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !host.is_empty() && host.split('.').all(|label| !label.is_empty() && label.chars().all(fine))
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Destination::Host(name) => f.write_str(name)?,
            Destination::Network { address, prefix } if *prefix < bits(*address) => {
                write!(f, "{address}/{prefix}")?;
            }
            Destination::Network { address: IpAddr::V6(v6), .. } if self.port.is_some() => {
                write!(f, "[{v6}]")?;
            }
            Destination::Network { address, .. } => write!(f, "{address}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl Serialize for Allowed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(allowed: &str, host: &str, address: &str, port: u16) -> bool {
        let allowed: Allowed = allowed.parse().expect("an entry");
        allowed.covers(host, address.parse().expect("an address"), port)
    }

    #[test]
    fn an_entry_covers_its_host_network_and_port_and_nothing_else() {
        assert!(covers("registry.internal", "registry.internal", "10.0.0.1", 443));
        assert!(covers("Registry.Internal:5000", "registry.internal", "10.0.0.1", 5000));
        assert!(!covers("registry.internal:5000", "registry.internal", "10.0.0.1", 5001));
        assert!(!covers("registry.internal", "evil.internal", "10.0.0.1", 443));
        assert!(covers("10.0.0.0/8", "any.example", "10.255.0.1", 1));
        assert!(!covers("10.0.0.0/8", "any.example", "11.0.0.1", 1));
        assert!(covers("0.0.0.0/0", "any.example", "169.254.169.254", 1));
        assert!(covers("10.0.0.0/8", "any.example", "::ffff:10.0.0.1", 1));
        assert!(!covers("10.0.0.0/8", "any.example", "fd00::1", 1));
        assert!(covers("fd00::/8", "any.example", "fd12::1", 1));
        assert!(covers("127.0.0.1", "localhost", "127.0.0.1", 9));
        assert!(!covers("127.0.0.1:5000", "localhost", "127.0.0.1", 9));
        assert!(covers("[::1]:5000", "localhost", "::1", 5000));
        assert!(covers("::1", "localhost", "::1", 5000));
    }

    #[test]
    fn an_entry_is_shown_as_it_is_read() {
        for text in ["a.example", "a.example:1", "10.0.0.0/8", "127.0.0.1:80", "::1", "[::1]:5000"]
        {
            assert_eq!(text.parse::<Allowed>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn what_names_no_place_is_no_entry() {
        for text in
            ["", "a b", "https://a.example", "10.0.0.0/33", "a/8", "a:b", "a..b", "*", "a:70000"]
        {
            assert!(text.parse::<Allowed>().is_err(), "{text}");
        }
    }
}
