//! Host names and the addresses that stand for them in one sandbox.
//!
//! Each name has one number, and with it one IPv4 address of 198.18.0.0/15 and one IPv6 address of fc00::/18. The number
//! follows from the name, so that a program which remembers an address still finds the same host after the daemon was
//! restarted. Nothing outside of the sandbox has these addresses, and the gateway never dials them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use sandkeep_core::limits::EGRESS_NAMES_MAX;

const V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const V4_PREFIX: u8 = 15;
/// The IPv4 address is in the last 32 bits.
const V6: Ipv6Addr = Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0);
const V6_PREFIX: u8 = 18;
/// The first addresses belong to the sandbox itself, the last is left out as a broadcast address.
const FIRST: u32 = 16;
const END: u32 = (1 << (32 - V4_PREFIX as u32)) - 1;

/// Whether an address stands for a name, or for a sandbox itself.
pub(crate) fn is_reserved(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => (v4.to_bits() ^ V4.to_bits()).leading_zeros() >= u32::from(V4_PREFIX),
        IpAddr::V6(v6) => (v6.to_bits() ^ V6.to_bits()).leading_zeros() >= u32::from(V6_PREFIX),
    }
}

/// The addresses of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Number(u32);

impl Number {
    pub(crate) fn v4(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(V4.to_bits() + self.0)
    }

    pub(crate) fn v6(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(V6.to_bits() + u128::from(self.v4().to_bits()))
    }

    fn of(address: IpAddr) -> Option<Self> {
        let v4 = match address.to_canonical() {
            IpAddr::V4(v4) => v4,
            IpAddr::V6(v6) => {
                let rest = v6.to_bits().checked_sub(V6.to_bits())?;
                Ipv4Addr::from_bits(u32::try_from(rest).ok()?)
            }
        };
        let number = v4.to_bits().checked_sub(V4.to_bits())?;
        (FIRST..END).contains(&number).then_some(Self(number))
    }
}

/// The names of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: HashMap<Arc<str>, Number>,
    names: HashMap<Number, Named>,
    /// By when they were last used.
    order: BTreeMap<u64, Number>,
    uses: u64,
}

#[derive(Debug)]
struct Named {
    name: Arc<str>,
    used: u64,
}

impl Names {
    /// The number of a name, which gets one if it has none.
    pub(crate) fn number(&mut self, name: &str) -> Number {
        if let Some(number) = self.numbers.get(name).copied() {
            self.used(number);
            return number;
        }
        if self.numbers.len() >= EGRESS_NAMES_MAX {
            self.forget_oldest();
        }
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let span = u64::from(END - FIRST);
        let start = u32::try_from(hasher.finish() % span).expect("it is less than the span");
        // There are many more numbers than names, so that one is found soon.
        let numbers = (0..END - FIRST).map(|step| FIRST + (start + step) % (END - FIRST));
        let number = numbers
            .map(Number)
            .find(|number| !self.names.contains_key(number))
            .expect("there are more numbers than names");
        let name: Arc<str> = name.into();
        self.numbers.insert(Arc::clone(&name), number);
        self.names.insert(number, Named { name, used: 0 });
        self.used(number);
        number
    }

    pub(crate) fn name(&mut self, address: IpAddr) -> Option<Arc<str>> {
        let number = Number::of(address)?;
        let name = self.names.get(&number).map(|named| Arc::clone(&named.name))?;
        self.used(number);
        Some(name)
    }

    fn used(&mut self, number: Number) {
        let Some(named) = self.names.get_mut(&number) else { return };
        self.uses += 1;
        self.order.remove(&named.used);
        named.used = self.uses;
        self.order.insert(self.uses, number);
    }

    fn forget_oldest(&mut self) {
        let Some((_, number)) = self.order.pop_first() else { return };
        if let Some(named) = self.names.remove(&number) {
            self.numbers.remove(&named.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_addresses_and_they_lead_back_to_it() {
        let (mut names, mut again) = (Names::default(), Names::default());
        let number = names.number("a.example");
        for name in ["b.example", "a.example", "c.example"] {
            let number = names.number(name);
            for address in [IpAddr::V4(number.v4()), IpAddr::V6(number.v6())] {
                assert!(is_reserved(address), "{address}");
                assert_eq!(names.name(address).as_deref(), Some(name));
            }
        }
        assert_eq!((names.number("a.example"), again.number("a.example")), (number, number));
        for none in ["198.18.0.1", "198.18.0.0", "198.19.255.255", "fc00::1", "8.8.8.8", "::1"] {
            assert_eq!(names.name(none.parse().expect("an address")), None, "{none}");
        }
        for outside in ["198.17.255.255", "198.20.0.0", "fc00:4000::", "fd00::1"] {
            assert!(!is_reserved(outside.parse().expect("an address")), "{outside}");
        }
    }

    #[test]
    fn names_are_bounded_and_the_one_not_used_for_longest_goes() {
        let mut names = Names::default();
        let kept = names.number("kept.example");
        let first = names.number("n0.example");
        for other in 1..=EGRESS_NAMES_MAX {
            names.number(&format!("n{other}.example"));
            assert_eq!(names.number("kept.example"), kept);
        }
        assert_eq!(names.numbers.len(), EGRESS_NAMES_MAX);
        assert_eq!(names.names.len(), EGRESS_NAMES_MAX);
        assert_eq!(names.order.len(), EGRESS_NAMES_MAX);
        assert_ne!(names.name(first.v4().into()).as_deref(), Some("n0.example"));
        assert_eq!(names.name(kept.v6().into()).as_deref(), Some("kept.example"));
    }
}
