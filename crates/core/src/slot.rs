//! A slot: a name that at most one sandbox of an owner has at a time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits;

/// `[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}` without `..`: safe as a file name, a label and a part of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(
    value_type = String, pattern = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$", max_length = 128,
    examples("shared", "run.4711")
)]
pub struct SlotName(String);

/// A string that is not a valid slot name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a slot has 1 to {max} letters, digits, '.', '_' and '-', the first a letter or digit, and no '..'",
    max = limits::SLOT_MAX_BYTES
)]
pub struct InvalidSlot;

impl SlotName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SlotName {
    type Err = InvalidSlot;

    fn from_str(text: &str) -> Result<Self, InvalidSlot> {
        if is_plain(text) { Ok(Self(text.to_owned())) } else { Err(InvalidSlot) }
    }
}

/// Whether a text is safe as a file name, a label and a part of a path.
pub(super) fn is_plain(text: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let short = text.len() <= limits::SLOT_MAX_BYTES;
    begins_well && short && text.bytes().all(fine) && !text.contains("..")
}

impl TryFrom<String> for SlotName {
    type Error = InvalidSlot;

    fn try_from(text: String) -> Result<Self, InvalidSlot> {
        text.parse()
    }
}

impl From<SlotName> for String {
    fn from(slot: SlotName) -> String {
        slot.0
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_a_plain_name() {
        let longest = format!("a{}", "-".repeat(127));
        for good in ["a", "0", "shared", "run.4711", "agent-run_1.x", &longest] {
            assert!(good.parse::<SlotName>().is_ok(), "{good} was refused");
        }
        let too_long = format!("{longest}-");
        for bad in ["", ".a", "-a", "_a", "a..b", "a/b", "a b", "ä", "a\n", "a\0", &too_long] {
            assert!(bad.parse::<SlotName>().is_err(), "{bad:?} was accepted");
        }
    }
}
