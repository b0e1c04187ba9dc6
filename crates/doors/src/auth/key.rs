//! API keys as text: `sk_<id>_<secret>`, 64 and 256 random bits in hexadecimal digits.
//!
//! The id is the lookup key and may be shown and logged. The secret is shown once, and only the SHA-256 of the whole
//! key is stored. A salt, a pepper or a slow hash would add nothing: they protect passwords that people choose, and 256
//! random bits cannot be guessed from their hash.

use std::fmt;

use ring::digest::{SHA256, digest};
use sandkeep_core::KeyId;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

const KEY_PREFIX: &str = "sk_";
const SECRET_BYTES: usize = 32;

/// A whole key, secret included.
pub struct ApiKey {
    id: KeyId,
    text: String,
}

impl ApiKey {
    pub fn random() -> Self {
        let (id, secret) = (random_hex::<{ KeyId::BYTES }>(), random_hex::<SECRET_BYTES>());
        let key = Self::parse(&format!("{KEY_PREFIX}{id}_{secret}"));
        key.expect("hexadecimal digits, and as many as a key has")
    }

    /// `None` if the text does not have the form of a key.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(KEY_PREFIX)?.split_once('_')?;
        let id = KeyId::of_hex(id).ok()?;
        is_hex(secret, SECRET_BYTES).then(|| Self { id, text: text.to_owned() })
    }

    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// The key itself, for its owner.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    pub(super) fn hash(&self) -> KeyHash {
        KeyHash(hex::encode(digest(&SHA256, self.text.as_bytes())))
    }
}

/// Printing a key by mistake prints only its id.
impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The part of a key that is stored.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct KeyHash(String);

impl KeyHash {
    /// Compares in constant time.
    pub fn matches(&self, key: &ApiKey) -> bool {
        self.0.as_bytes().ct_eq(key.hash().0.as_bytes()).into()
    }
}

fn random_hex<const N: usize>() -> String {
    let mut bytes = [0u8; N];
    // Without the kernel's random source no secret can be generated, and there is no safe fallback.
    getrandom::fill(&mut bytes).expect("the kernel's random source never fails once it is seeded");
    hex::encode(bytes)
}

fn is_hex(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back_and_matches_only_its_own_hash() {
        let (one, two) = (ApiKey::random(), ApiKey::random());
        let again = ApiKey::parse(one.reveal()).expect("it has the form of a key");
        assert_eq!(again.id(), one.id());
        assert!(one.hash().matches(&again));
        assert!(!one.hash().matches(&two));
        assert_eq!(one.id().as_str().parse().as_ref(), Ok(one.id()));
    }

    #[test]
    fn the_secret_of_one_key_does_not_open_another() {
        let (one, two) = (ApiKey::random(), ApiKey::random());
        let (_, secret) = one.reveal().rsplit_once('_').expect("three parts");
        let (head, _) = two.reveal().rsplit_once('_').expect("three parts");
        let mixed = ApiKey::parse(&format!("{head}_{secret}")).expect("the form of a key");
        assert_eq!(mixed.id(), two.id());
        assert!(!two.hash().matches(&mixed) && !one.hash().matches(&mixed));
    }

    #[test]
    fn what_is_not_a_key_is_not_taken_for_one() {
        let good = ApiKey::random().reveal().to_owned();
        let cut = &good[..good.len() - 1];
        for text in ["", "sk_", "sk__", cut, &format!("{good}0"), &good.to_uppercase()] {
            assert!(ApiKey::parse(text).is_none(), "{text}");
        }
        assert!(ApiKey::parse(&good.replace("sk_", "pk_")).is_none());
    }

    #[test]
    fn a_key_that_is_printed_for_debugging_hides_its_secret() {
        let key = ApiKey::random();
        let (_, secret) = key.reveal().rsplit_once('_').expect("three parts");
        assert!(!format!("{key:?}").contains(secret));
    }
}
