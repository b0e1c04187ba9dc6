//! The keys of an issuer (RFC 7517). Keys of other kinds and for other uses are left out: an issuer may
//! have them for others.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::jws::Algorithm;
use sandkeep_core::limits::JWKS_KEYS_MAX;

/// The length of a coordinate of P-256.
const COORDINATE_BYTES: usize = 32;
/// The tag of a point that is given by both coordinates.
const UNCOMPRESSED: u8 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicKey {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256 { point: Vec<u8> },
}

impl PublicKey {
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::Rsa { .. } => Algorithm::Rs256,
            Self::P256 { .. } => Algorithm::Es256,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum InvalidKeySet {
    #[error("it is no JSON Web Key Set: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("it has {count} keys, more than {JWKS_KEYS_MAX}")]
    TooMany { count: usize },
    #[error("it has no key for RS256 or ES256")]
    Empty,
}

#[derive(Debug)]
pub struct KeySet {
    keys: Vec<(Option<String>, PublicKey)>,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    r#use: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidKeySet> {
        let document: Document = serde_json::from_slice(bytes)?;
        let count = document.keys.len();
        if count > JWKS_KEYS_MAX {
            return Err(InvalidKeySet::TooMany { count });
        }
        let read = |value| serde_json::from_value::<Jwk>(value).ok()?.read();
        let keys: Vec<_> = document.keys.into_iter().filter_map(read).collect();
        if keys.is_empty() { Err(InvalidKeySet::Empty) } else { Ok(Self { keys }) }
    }

    /// The keys that may have signed a token: the one it names, or any if it names none.
    pub fn candidates(
        &self,
        algorithm: Algorithm,
        kid: Option<&str>,
    ) -> impl Iterator<Item = &PublicKey> {
        self.keys
            .iter()
            .filter(move |(_, key)| key.algorithm() == algorithm)
            .filter(move |(name, _)| kid.is_none() || name.as_deref() == kid)
            .map(|(_, key)| key)
    }
}

impl Jwk {
    fn read(self) -> Option<(Option<String>, PublicKey)> {
        if self.r#use.is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let decode = |part: Option<String>| URL_SAFE_NO_PAD.decode(part?).ok();
        let key = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => {
                // ring takes no leading zeros, which some issuers send.
                PublicKey::Rsa { n: unpadded(decode(self.n)?), e: unpadded(decode(self.e)?) }
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (decode(self.x)?, decode(self.y)?);
                if x.len() != COORDINATE_BYTES || y.len() != COORDINATE_BYTES {
                    return None;
                }
                PublicKey::P256 { point: [vec![UNCOMPRESSED], x, y].concat() }
            }
            _ => return None,
        };
        match self.alg.as_deref().map(Algorithm::from_name) {
            None => Some((self.kid, key)),
            Some(named) if named == Some(key.algorithm()) => Some((self.kid, key)),
            Some(_) => None,
        }
    }
}

fn unpadded(number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number[zeros..].to_vec()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rsa(kid: &str) -> serde_json::Value {
        json!({ "kty": "RSA", "kid": kid, "n": "AAEC", "e": "AQAB" })
    }

    fn parse(keys: serde_json::Value) -> Result<KeySet, InvalidKeySet> {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    #[test]
    fn keys_for_something_else_are_left_out() {
        let mut encrypts = rsa("encrypts");
        encrypts["use"] = json!("enc");
        let mut other_algorithm = rsa("other");
        other_algorithm["alg"] = json!("RS512");
        let symmetric = json!({ "kty": "oct", "k": "c2VjcmV0", "kid": "oct" });
        let curve = json!({ "kty": "EC", "crv": "P-384", "x": "AA", "y": "AA" });
        let short = json!({ "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA" });
        let all = json!([encrypts, other_algorithm, symmetric, curve, short, 7, rsa("good")]);
        let set = parse(all).expect("one key is good");
        assert_eq!(set.candidates(Algorithm::Rs256, None).count(), 1);
        assert_eq!(set.candidates(Algorithm::Rs256, Some("good")).count(), 1);
        assert_eq!(set.candidates(Algorithm::Rs256, Some("other")).count(), 0);
        assert_eq!(set.candidates(Algorithm::Es256, None).count(), 0);
    }

    #[test]
    fn a_set_without_a_usable_key_or_with_too_many_is_refused() {
        assert!(matches!(parse(json!([])), Err(InvalidKeySet::Empty)));
        assert!(matches!(KeySet::parse(b"<html>"), Err(InvalidKeySet::Malformed(_))));
        let many: Vec<_> = (0..=JWKS_KEYS_MAX).map(|n| rsa(&n.to_string())).collect();
        assert!(matches!(parse(json!(many)), Err(InvalidKeySet::TooMany { .. })));
    }

    #[test]
    fn a_number_with_leading_zeros_is_the_same_number() {
        let set = parse(json!([rsa("a")])).expect("a key");
        let key = set.candidates(Algorithm::Rs256, None).next().expect("a key");
        assert_eq!(*key, PublicKey::Rsa { n: vec![1, 2], e: vec![1, 0, 1] });
    }
}
