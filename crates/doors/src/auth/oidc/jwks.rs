//! An issuer's key set (RFC 7517). Keys of other types and for other uses are ignored: an issuer may publish them for
//! other services.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;

use sandkeep_core::limits::JWKS_KEYS_MAX;

/// The length of a coordinate of P-256.
const COORDINATE_BYTES: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum InvalidKeySet {
    #[error("not a JSON Web Key Set: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("it has {count} keys, more than {JWKS_KEYS_MAX}")]
    TooMany { count: usize },
    #[error("it has no key for RS256 or ES256")]
    Empty,
}

#[derive(Debug)]
pub struct KeySet {
    keys: Vec<(Option<String>, Algorithm, DecodingKey)>,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidKeySet> {
        let document: Document = serde_json::from_slice(bytes)?;
        let count = document.keys.len();
        if count > JWKS_KEYS_MAX {
            return Err(InvalidKeySet::TooMany { count });
        }
        let read = |value| read(serde_json::from_value(value).ok()?);
        let keys: Vec<_> = document.keys.into_iter().filter_map(read).collect();
        if keys.is_empty() { Err(InvalidKeySet::Empty) } else { Ok(Self { keys }) }
    }

    /// The keys that may have signed a token: the key that the token names, or every key if it names none.
    pub fn candidates(
        &self,
        algorithm: Algorithm,
        kid: Option<&str>,
    ) -> impl Iterator<Item = &DecodingKey> {
        self.keys
            .iter()
            .filter(move |(_, own, _)| *own == algorithm)
            .filter(move |(name, ..)| kid.is_none() || name.as_deref() == kid)
            .map(|(.., key)| key)
    }
}

/// A key for one of the two algorithms, chosen by key type.
fn read(jwk: Jwk) -> Option<(Option<String>, Algorithm, DecodingKey)> {
    if jwk.common.public_key_use.is_some_and(|purpose| purpose != PublicKeyUse::Signature) {
        return None;
    }
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
    let (algorithm, key) = match &jwk.algorithm {
        AlgorithmParameters::RSA(rsa) => {
            // ring rejects leading zeros, which some issuers send.
            let (n, e) = (unpadded(decode(&rsa.n)?), unpadded(decode(&rsa.e)?));
            (Algorithm::RS256, DecodingKey::from_rsa_raw_components(&n, &e))
        }
        AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => {
            if [&ec.x, &ec.y].map(|part| decode(part).map(|bytes| bytes.len()))
                != [Some(COORDINATE_BYTES); 2]
            {
                return None;
            }
            (Algorithm::ES256, DecodingKey::from_ec_components(&ec.x, &ec.y).ok()?)
        }
        _ => return None,
    };
    let named = jwk.common.key_algorithm;
    let fits = named.is_none_or(|named| named == KeyAlgorithm::from(algorithm));
    fits.then_some((jwk.common.key_id, algorithm, key))
}

fn unpadded(number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number[zeros..].to_vec()
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::DecodingKeyKind;
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
        assert_eq!(set.candidates(Algorithm::RS256, None).count(), 1);
        assert_eq!(set.candidates(Algorithm::RS256, Some("good")).count(), 1);
        assert_eq!(set.candidates(Algorithm::RS256, Some("other")).count(), 0);
        assert_eq!(set.candidates(Algorithm::ES256, None).count(), 0);
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
        let key = set.candidates(Algorithm::RS256, None).next().expect("a key");
        let DecodingKeyKind::RsaModulusExponent { n, e } = key.kind() else { panic!("{key:?}") };
        assert_eq!((n, e), (&vec![1, 2], &vec![1, 0, 1]));
    }
}
