//! Signals by name or number, as `kill` takes them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// By number, from 1; signals without a number of their own on Linux are left out.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
/// The last real-time signal.
const MAX: i32 = 64;

/// A signal that exists on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(i32);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a signal; use a name like SIGTERM or TERM, or a number from 1 to {MAX}")]
pub struct NoSignal(String);

impl Signal {
    pub const TERM: Self = Self(15);

    pub fn number(self) -> i32 {
        self.0
    }
}

impl FromStr for Signal {
    type Err = NoSignal;

    fn from_str(text: &str) -> Result<Self, NoSignal> {
        let upper = text.trim().to_ascii_uppercase();
        if let Ok(number) = upper.parse::<i32>() {
            return Self::try_from(number);
        }
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let position = NAMES.iter().position(|known| *known == name);
        let number = position.and_then(|position| i32::try_from(position + 1).ok());
        number.map(Self).ok_or_else(|| NoSignal(text.to_owned()))
    }
}

impl TryFrom<i32> for Signal {
    type Error = NoSignal;

    fn try_from(number: i32) -> Result<Self, NoSignal> {
        if (1..=MAX).contains(&number) {
            Ok(Self(number))
        } else {
            Err(NoSignal(number.to_string()))
        }
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NameOrNumber)
    }
}

struct NameOrNumber;

impl de::Visitor<'_> for NameOrNumber {
    type Value = Signal;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a signal's name or number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Signal, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Signal, E> {
        let signal = i32::try_from(number).map_err(|_| NoSignal(number.to_string()));
        signal.and_then(Signal::try_from).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Signal, E> {
        Err(E::custom(NoSignal(number.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_mean_the_same() {
        for text in ["SIGTERM", "TERM", "term", "15", " sigterm "] {
            assert_eq!(text.parse(), Ok(Signal::TERM), "{text:?}");
        }
        assert_eq!("KILL".parse::<Signal>().map(Signal::number), Ok(9));
        assert_eq!("SYS".parse::<Signal>().map(Signal::number), Ok(31));
        for text in ["", "SIG", "NOPE", "0", "-9", "65", "9.5"] {
            assert!(text.parse::<Signal>().is_err(), "{text:?}");
        }
        let from_json = |text: &str| serde_json::from_str::<Signal>(text).ok();
        assert_eq!(from_json("15"), Some(Signal::TERM));
        assert_eq!(from_json("\"SIGTERM\""), Some(Signal::TERM));
        for text in ["0", "-15", "65", "\"\"", "true", "1e3"] {
            assert_eq!(from_json(text), None, "{text}");
        }
    }
}
