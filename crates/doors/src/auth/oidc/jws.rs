//! A signed token in compact form (RFC 7515). ring verifies the signature.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, Header, Validation, decode,
    decode_header,
};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::Value;

use crate::auth::AuthError;

static RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Selects ring for the whole process. No token can be verified before this is called.
pub fn provide() {
    // An error means that a provider was already selected.
    let _ = RING.install_default();
}

/// The accepted algorithms. The key's type decides which one applies, so a token cannot have an RSA key used as a
/// symmetric secret.
fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    match (algorithm, key.family()) {
        (Algorithm::RS256, AlgorithmFamily::Rsa) | (Algorithm::ES256, AlgorithmFamily::Ec) => {
            Ok(Box::new(Key { algorithm: *algorithm, key: key.clone() }))
        }
        _ => Err(ErrorKind::InvalidAlgorithm.into()),
    }
}

struct Key {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for Key {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Key {
    fn verify(&self, signed: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let holds =
            match self.key.kind() {
                DecodingKeyKind::RsaModulusExponent { n, e } => RsaPublicKeyComponents { n, e }
                    .verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature),
                DecodingKeyKind::SecretOrDer(point) => {
                    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                        .verify(signed, signature)
                }
            };
        holds.map_err(|_| signature::Error::new())
    }
}

/// A token whose signature has not been verified yet. Its payload is not accessible.
pub struct Token<'a> {
    text: &'a str,
    header: Header,
}

impl<'a> Token<'a> {
    pub fn parse(text: &'a str) -> Result<Self, AuthError> {
        let header = decode_header(text)
            .map_err(|_| AuthError::refused("the credential is neither an API key nor a JWT"))?;
        // `crit` lists extensions that must be understood; we support none.
        if header.crit.is_some() {
            return Err(AuthError::refused("the token has critical headers, which are not known"));
        }
        match header.alg {
            Algorithm::RS256 | Algorithm::ES256 => Ok(Self { text, header }),
            _ => Err(AuthError::refused("the token is signed neither with RS256 nor ES256")),
        }
    }

    pub fn algorithm(&self) -> Algorithm {
        self.header.alg
    }

    /// The name of the key that the token claims to be signed with.
    pub fn kid(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// The claims, if this key signed the token. `claims` decides whether they are valid here and now.
    pub fn verified(&self, key: &DecodingKey) -> Option<Value> {
        let mut signature_alone = Validation::new(self.header.alg);
        signature_alone.required_spec_claims.clear();
        signature_alone.validate_exp = false;
        signature_alone.validate_aud = false;
        decode(self.text, key, &signature_alone).ok().map(|token| token.claims)
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    #[test]
    fn a_header_that_asks_for_more_than_we_do_is_refused() {
        for (header, clue) in [
            (r#"{"alg":"RS256","crit":["exp"]}"#, "critical"),
            (r#"{"alg":"RS512"}"#, "neither with RS256 nor ES256"),
            (r#"{"alg":"HS256"}"#, "neither with RS256 nor ES256"),
            (r#"{"alg":"none"}"#, "neither an API key nor a JWT"),
            ("{}", "neither an API key nor a JWT"),
        ] {
            let text = format!("{}.e30.AA", URL_SAFE_NO_PAD.encode(header));
            let refused = Token::parse(&text).err().expect(header).to_string();
            assert!(refused.contains(clue), "{header}: {refused}");
        }
        assert!(Token::parse("sk_something").is_err() && Token::parse("a.b.c").is_err());
    }

    #[test]
    fn a_key_serves_only_the_algorithm_of_its_kind() {
        let rsa = DecodingKey::from_rsa_raw_components(&[1; 256], &[1, 0, 1]);
        let (ec, secret) = (DecodingKey::from_ec_der(&[4; 65]), DecodingKey::from_secret(b"s"));
        let works = |algorithm, key| verifier(&algorithm, key).is_ok();
        assert!(works(Algorithm::RS256, &rsa) && works(Algorithm::ES256, &ec));
        for key in [&rsa, &ec, &secret] {
            assert!(!works(Algorithm::HS256, key) && !works(Algorithm::RS512, key));
        }
        assert!(!works(Algorithm::ES256, &rsa) && !works(Algorithm::RS256, &ec));
        assert!(!works(Algorithm::RS256, &secret) && !works(Algorithm::ES256, &secret));
    }
}
