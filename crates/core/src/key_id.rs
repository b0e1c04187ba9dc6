//! Ids of API keys.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const ID_PREFIX: &str = "key_";

/// Id of a key; not secret.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String)]
pub struct KeyId(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a key id: expected {ID_PREFIX} and {} hexadecimal digits", 2 * KeyId::BYTES)]
pub struct InvalidKeyId {
    text: String,
}

impl KeyId {
    /// Number of random bytes of an id.
    pub const BYTES: usize = 8;

    /// The id with these hexadecimal digits.
    pub fn of_hex(digits: &str) -> Result<Self, InvalidKeyId> {
        format!("{ID_PREFIX}{digits}").parse()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its random bytes.
    pub fn bytes(&self) -> [u8; Self::BYTES] {
        let digits = &self.0[ID_PREFIX.len()..];
        let number = u64::from_str_radix(digits, 16).expect("an id has hexadecimal digits");
        number.to_be_bytes()
    }

    pub fn of_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(format!("{ID_PREFIX}{:016x}", u64::from_be_bytes(bytes)))
    }
}

impl FromStr for KeyId {
    type Err = InvalidKeyId;

    fn from_str(text: &str) -> Result<Self, InvalidKeyId> {
        let is_id = text.strip_prefix(ID_PREFIX).is_some_and(|digits| {
            digits.len() == 2 * Self::BYTES
                && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        if is_id { Ok(Self(text.to_owned())) } else { Err(InvalidKeyId { text: text.to_owned() }) }
    }
}

impl TryFrom<String> for KeyId {
    type Error = InvalidKeyId;

    fn try_from(text: String) -> Result<Self, InvalidKeyId> {
        text.parse()
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> String {
        id.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
