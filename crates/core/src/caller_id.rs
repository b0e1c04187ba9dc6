//! Ids that callers choose for their own requests, so that a repeated request is recognized.

use std::fmt;
use std::str::FromStr;

use crate::limits;

/// A text that is not a valid id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} has 1 to {max} visible ASCII characters")]
pub struct InvalidCallerId {
    what: &'static str,
    max: usize,
}

macro_rules! caller_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidCallerId;

            fn from_str(text: &str) -> Result<Self, InvalidCallerId> {
                let fits = (1..=$max).contains(&text.len());
                if fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(InvalidCallerId { what: $what, max: $max })
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

caller_id! {
    /// The value of the header `Idempotency-Key`.
    IdempotencyKey, "a key", limits::IDEMPOTENCY_KEY_MAX_BYTES
}

caller_id! {
    /// The id of one tool call, chosen by its caller: a call that is repeated with its id is not executed twice.
    ToolCallId, "it", limits::TOOL_CALL_ID_MAX_BYTES
}
