//! Values whose JSON is not that of their Rust types: times, 64-bit numbers, and enums by name.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use sandkeep_broker::error::Error;

const NANOS: i32 = 1_000_000_000;

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl From<jiff::Timestamp> for Timestamp {
    fn from(time: jiff::Timestamp) -> Self {
        let nanos = time.subsec_nanosecond();
        // Before 1970 the fraction still counts forward.
        if nanos < 0 {
            Self { seconds: time.as_second() - 1, nanos: nanos + NANOS }
        } else {
            Self { seconds: time.as_second(), nanos }
        }
    }
}

impl From<std::time::Duration> for Duration {
    fn from(time: std::time::Duration) -> Self {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Self { seconds, nanos: i32::try_from(time.subsec_nanos()).expect("under a billion") }
    }
}

impl Duration {
    /// A time that something may take; a negative one is nobody's.
    pub fn positive(self, field: &'static str) -> Result<std::time::Duration, Error> {
        let seconds = u64::try_from(self.seconds);
        let nanos = u32::try_from(self.nanos).ok().filter(|_| self.nanos < NANOS);
        let time = seconds.ok().zip(nanos).map(|(s, n)| std::time::Duration::new(s, n));
        time.filter(|time| !time.is_zero()).ok_or_else(|| Error::InvalidField {
            field,
            problem: "expected a time over zero; leave it out for none".to_owned(),
        })
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let time = jiff::Timestamp::new(self.seconds, self.nanos);
        time.unwrap_or(jiff::Timestamp::UNIX_EPOCH).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        jiff::Timestamp::deserialize(from).map(Self::from)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.seconds < 0 || self.nanos < 0 { "-" } else { "" };
        let (seconds, nanos) = (self.seconds.unsigned_abs(), self.nanos.unsigned_abs());
        let fraction = format!("{nanos:09}");
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{sign}{seconds}s"),
            digits => write!(f, "{sign}{seconds}.{digits}s"),
        }
    }
}

impl FromStr for Duration {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "expected seconds such as 1.5s";
        let (sign, rest) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text),
        };
        let number = rest.strip_suffix('s').ok_or(WRONG)?;
        let (seconds, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if seconds.is_empty() || !is_digits(seconds) || !is_digits(fraction) || fraction.len() > 9 {
            return Err(WRONG);
        }
        let seconds: i64 = seconds.parse().map_err(|_| WRONG)?;
        let nanos: i32 = format!("{fraction:0<9}").parse().map_err(|_| WRONG)?;
        Ok(Self { seconds: sign * seconds, nanos: i32::try_from(sign).unwrap_or(1) * nanos })
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Numbers that JavaScript would round: written as texts, read as either.
pub mod int64 {
    use super::*;

    pub fn serialize<S: Serializer>(number: &i64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(number)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(i64),
            Text(String),
        }
        match Either::deserialize(from)? {
            Either::Number(number) => Ok(number),
            Either::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

/// The names of an enum's numbers.
pub trait Named {
    const NAMES: &'static [(i32, &'static str)];
}

/// Enums: written by name, or by number if that has none; read as either.
pub struct EnumName<E>(PhantomData<E>);

impl<E: Named> EnumName<E> {
    pub fn serialize<S: Serializer>(number: &i32, to: S) -> Result<S::Ok, S::Error> {
        match E::NAMES.iter().find(|(known, _)| known == number) {
            Some((_, name)) => to.serialize_str(name),
            None => to.serialize_i32(*number),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
        from.deserialize_any(Self(PhantomData))
    }
}

impl<E: Named> Visitor<'_> for EnumName<E> {
    type Value = i32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = E::NAMES.iter().map(|(_, name)| *name).collect();
        write!(f, "one of {}", names.join(", "))
    }

    fn visit_str<R: serde::de::Error>(self, text: &str) -> Result<i32, R> {
        let found = E::NAMES.iter().find(|(_, name)| *name == text);
        let unknown = || R::invalid_value(serde::de::Unexpected::Str(text), &self);
        found.map(|(number, _)| *number).ok_or_else(unknown)
    }

    fn visit_i64<R: serde::de::Error>(self, number: i64) -> Result<i32, R> {
        i32::try_from(number).map_err(R::custom)
    }

    fn visit_u64<R: serde::de::Error>(self, number: u64) -> Result<i32, R> {
        i32::try_from(number).map_err(R::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::messages::{
        CreateSandboxRequest, ExecRequest, PermissionRule, Sandbox, SandboxStatus,
    };
    use super::*;

    #[test]
    fn durations_are_seconds() {
        for (text, seconds, nanos) in [
            ("1.5s", 1, 500_000_000),
            ("60s", 60, 0),
            ("0.000000001s", 0, 1),
            ("-2.25s", -2, -250_000_000),
        ] {
            let duration = Duration { seconds, nanos };
            assert_eq!((duration.to_string().as_str(), text.parse()), (text, Ok(duration)));
        }
        for wrong in ["", "s", "1", "1.s5", ".5s", "1e3s", "1.0000000001s", "--1s"] {
            assert!(wrong.parse::<Duration>().is_err(), "{wrong:?}");
        }
        assert!(Duration { seconds: -1, nanos: 0 }.positive("timeout").is_err());
        assert!(Duration { seconds: 0, nanos: 0 }.positive("timeout").is_err());
        assert!(Duration { seconds: 0, nanos: NANOS }.positive("timeout").is_err());
    }

    #[test]
    fn messages_are_json_as_grpc_gateway_writes_it() {
        let sandbox = Sandbox {
            id: "sb".to_owned(),
            status: SandboxStatus::Running.into(),
            created_at: Some(Timestamp { seconds: 1, nanos: 0 }),
            ..Sandbox::default()
        };
        let written = json!(sandbox);
        assert_eq!(written["status"], "SANDBOX_STATUS_RUNNING");
        assert_eq!(written["createdAt"], "1970-01-01T00:00:01Z");
        assert_eq!((&written["codebaseId"], &written["startedAt"]), (&json!(""), &json!(null)));
        for sent in [
            json!({ "codebaseId": "c", "expiresIn": "1.5s", "resources": { "memoryBytes": "5" }, "more": 1 }),
            json!({ "codebase_id": "c", "expires_in": "1.5s", "resources": { "memory_bytes": 5 } }),
        ] {
            let read: CreateSandboxRequest = serde_json::from_value(sent).expect("a request");
            assert_eq!(read.codebase_id, "c");
            assert_eq!(read.expires_in, Some(Duration { seconds: 1, nanos: 500_000_000 }));
            assert_eq!(read.resources.map(|limits| limits.memory_bytes), Some(5));
        }
        let rule = json!({ "pattern": "**", "permission": "PERMISSION_READ", "type": 1 });
        let read: PermissionRule = serde_json::from_value(rule).expect("a rule");
        assert_eq!((read.permission, read.kind), (3, 1));
        assert!(serde_json::from_value::<PermissionRule>(json!({ "permission": "ALL" })).is_err());
        assert!(serde_json::from_value::<ExecRequest>(json!({ "timeout": "soon" })).is_err());
    }
}
