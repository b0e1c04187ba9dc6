//! Host names as an entry may write them: lower case ASCII labels, without the final dot. Text that a resolver or a
//! program could take for an address in another notation is not a name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::entry::EntryProblem;
use crate::limits;

/// The ports of an entry that names none.
pub const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// The name in its one form, or why it is none.
pub fn host_name(text: &str) -> Result<String, EntryProblem> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if !name.is_ascii() {
        return Err(EntryProblem::NotAscii);
    }
    if name.len() > limits::HOST_NAME_MAX_BYTES {
        return Err(EntryProblem::TooLong);
    }
    if let Some(label) = name.split('.').find(|label| !is_label(label)) {
        return Err(EntryProblem::Label(label.to_owned()));
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    if looks_like_number(last) {
        return Err(EntryProblem::AddressNotation);
    }
    Ok(name)
}

/// `_` is in names of services, and resolvers accept it.
fn is_label(label: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !label.is_empty()
        && label.len() <= limits::HOST_LABEL_MAX_BYTES
        && label.chars().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// As in URLs: a host whose last label is a number is an address.
fn looks_like_number(label: &str) -> bool {
    let hex = label.strip_prefix("0x");
    label.chars().all(|c| c.is_ascii_digit())
        || hex.is_some_and(|digits| digits.chars().all(|c| c.is_ascii_hexdigit()))
}

/// IPv4 in its own form, also where it was written as IPv6.
pub(super) fn canonical(address: IpAddr, prefix: u8) -> (IpAddr, u8) {
    match address {
        IpAddr::V6(v6) if prefix >= 96 => match v6.to_ipv4_mapped() {
            Some(v4) => (IpAddr::V4(v4), prefix - 96),
            None => (address, prefix),
        },
        IpAddr::V4(_) | IpAddr::V6(_) => (address, prefix),
    }
}

/// The address with all bits after the prefix cleared.
pub(super) fn network_address(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}
