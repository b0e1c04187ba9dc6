//! A TCP port of a sandbox.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Never zero: port 0 cannot be listened on.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[schema(value_type = u16, minimum = 1)]
pub struct Port(NonZeroU16);

/// A text that is not a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a port from 1 to 65535")]
pub struct InvalidPort {
    text: String,
}

impl Port {
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number).map(Self)
    }

    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl FromStr for Port {
    type Err = InvalidPort;

    /// Accepts only the canonical form: a port has one name, so that it cannot be addressed by two.
    fn from_str(text: &str) -> Result<Self, InvalidPort> {
        let parsed = text.parse().ok().map(Self).filter(|port| port.to_string() == text);
        parsed.ok_or_else(|| InvalidPort { text: text.to_owned() })
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_exactly_one_name() {
        assert_eq!("8080".parse().map(Port::get), Ok(8080));
        for text in ["", "0", "08080", "+80", "65536", "-1", " 80", "80a"] {
            assert!(text.parse::<Port>().is_err(), "{text:?} was accepted");
        }
    }
}
