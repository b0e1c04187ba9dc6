//! Where a request stands in a distributed trace: the `traceparent` of W3C Trace Context, version 00.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const VERSION: &str = "00";
const SAMPLED: u8 = 1;

/// The id of a trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

/// The id of one step of it; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(u64);

impl TraceId {
    pub fn random() -> Self {
        Self(u128::from_le_bytes(random()).max(1))
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl SpanId {
    pub fn random() -> Self {
        Self(u64::from_le_bytes(random()).max(1))
    }

    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel's random source always answers once booted");
    bytes
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a caller says of its trace, or what we say of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    pub trace: TraceId,
    pub span: SpanId,
    pub flags: u8,
}

impl TraceParent {
    /// The first step of a trace of its own.
    pub fn random() -> Self {
        Self { trace: TraceId::random(), span: SpanId::random(), flags: 0 }
    }

    /// One step further.
    pub fn child(self) -> Self {
        Self { span: SpanId::random(), ..self }
    }

    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same step, which is recorded somewhere from now on.
    pub fn sampled(self) -> Self {
        Self { flags: self.flags | SAMPLED, ..self }
    }

    /// The same step, which nobody records.
    pub fn unsampled(self) -> Self {
        Self { flags: self.flags & !SAMPLED, ..self }
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceParent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, span, flags } = self;
        write!(f, "{VERSION}-{trace}-{span}-{flags:02x}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent as in W3C Trace Context: 00-TRACE-SPAN-FLAGS, in lower case")]
pub struct InvalidTraceParent;

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    /// A later version may have more parts, of which the first four are read as in this one.
    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        let mut parts = text.split('-');
        let mut next = |digits| number(parts.next(), digits);
        let (version, trace) = (next(2)?, next(32)?);
        let (span, flags) = (next(16)?, next(2)?);
        let is_longer = parts.next().is_some();
        let is_valid = version != 0xff && trace != 0 && span != 0 && !(version == 0 && is_longer);
        let narrow = |_| InvalidTraceParent;
        if is_valid {
            Ok(Self {
                trace: TraceId(trace),
                span: SpanId(span.try_into().map_err(narrow)?),
                flags: flags.try_into().map_err(narrow)?,
            })
        } else {
            Err(InvalidTraceParent)
        }
    }
}

/// So many hexadecimal digits in lower case.
fn number(part: Option<&str>, digits: usize) -> Result<u128, InvalidTraceParent> {
    let part = part.ok_or(InvalidTraceParent)?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if part.len() == digits && part.bytes().all(is_digit) {
        u128::from_str_radix(part, 16).map_err(|_| InvalidTraceParent)
    } else {
        Err(InvalidTraceParent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_as_the_standard_says() {
        let read: TraceParent = GOOD.parse().expect("valid");
        assert_eq!(read.to_string(), GOOD);
        assert!(read.is_sampled());
        let child = read.child();
        assert_eq!((child.trace, child.flags), (read.trace, read.flags));
        assert_ne!(child.span, read.span);
        assert!(format!("cc{}-more", &GOOD[2..]).parse::<TraceParent>().is_ok(), "a later version");
    }

    #[test]
    fn what_is_no_traceparent_is_refused() {
        let upper = GOOD.to_uppercase();
        let longer = format!("{GOOD}-more");
        let late = format!("ff{}", &GOOD[2..]);
        for bad in [
            "",
            "00",
            upper.as_str(),
            longer.as_str(),
            late.as_str(),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-+1",
        ] {
            assert!(bad.parse::<TraceParent>().is_err(), "{bad}");
        }
    }
}
