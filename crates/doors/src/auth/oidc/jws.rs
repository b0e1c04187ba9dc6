//! A signed token in its compact form (RFC 7515): three parts in base64url, joined by dots.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use serde::Deserialize;

use super::jwks::PublicKey;
use crate::auth::AuthError;

/// The algorithms that are accepted. A key is for one of them by its kind, so a token cannot have an
/// RSA key read as the secret of something symmetric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Es256,
}

impl Algorithm {
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// What must be understood; we understand nothing of that kind.
    crit: Option<serde_json::Value>,
}

/// A token whose signature nobody has looked at yet: of its payload nothing can be had.
pub struct Token<'a> {
    algorithm: Algorithm,
    kid: Option<String>,
    signed: &'a [u8],
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    pub fn parse(text: &'a str) -> Result<Self, AuthError> {
        let malformed = || AuthError::refused("the credential is neither an API key nor a JWT");
        let (signed, signature) = text.rsplit_once('.').ok_or_else(malformed)?;
        let (header, payload) = signed.split_once('.').ok_or_else(malformed)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| malformed());
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| malformed())?;
        if header.crit.is_some() {
            return Err(AuthError::refused("the token has critical headers, which are not known"));
        }
        let algorithm = Algorithm::from_name(&header.alg).ok_or_else(|| {
            AuthError::refused("the token is signed neither with RS256 nor ES256")
        })?;
        Ok(Self {
            algorithm,
            kid: header.kid,
            signed: signed.as_bytes(),
            payload: decode(payload)?,
            signature: decode(signature)?,
        })
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The name of the key that it claims to be signed with.
    pub fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    /// The payload, if this key signed it.
    pub fn verified(&self, key: &PublicKey) -> Option<&[u8]> {
        if key.algorithm() != self.algorithm {
            return None;
        }
        let holds = match key {
            PublicKey::Rsa { n, e } => ring::signature::RsaPublicKeyComponents { n, e }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                self.signed,
                &self.signature,
            ),
            PublicKey::P256 { point } => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                .verify(self.signed, &self.signature),
        };
        holds.is_ok().then_some(&self.payload)
    }
}
