//! Port tokens: a signed text that grants access to one port of one sandbox until a given time. Nothing is stored for
//! it. It becomes invalid with its sandbox, because ids are never reused, and with the key that created it, whose id it
//! contains: the gate checks that key.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::hmac;

use sandkeep_core::{KeyId, Port, SandboxId};
use sandkeep_home::Secret;

/// Prefix of the signed message, so that the tag is valid for nothing else.
const PURPOSE: &[u8] = b"sandkeep port pass 1\0";
/// The same for a token that names a key.
const PURPOSE_OF_KEY: &[u8] = b"sandkeep port pass 2\0";
const EXPIRY_LEN: usize = 8;
const TAG_LEN: usize = 32;

/// A port token as returned to its creator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortToken {
    pub token: String,
    pub expires_at: Timestamp,
}

/// The content of a valid port token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPass {
    pub expires_at: Timestamp,
    /// The key that created it, if any; without that key it is invalid.
    pub key: Option<KeyId>,
}

/// Why a port token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortTokenProblem {
    #[error("the signed URL has expired")]
    Expired,
    #[error("the signed URL is not valid for this port")]
    Forged,
    #[error("the key that signed the URL was revoked or has expired")]
    Revoked,
}

/// Creates a port token with this lifetime.
pub(super) fn sign(
    secret: &Secret,
    sandbox: &SandboxId,
    port: Port,
    now: Timestamp,
    holds: Duration,
    key: Option<&KeyId>,
) -> PortToken {
    let seconds = now.as_second().saturating_add_unsigned(holds.as_secs());
    let expires_at = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    let expiry = expires_at.as_second().to_be_bytes();
    let key = key.map(KeyId::bytes);
    let tag = hmac::sign(&hmac_key(secret), &message(sandbox, port, expiry, key));
    let key: &[u8] = key.as_ref().map_or(&[], |key| key);
    let token = URL_SAFE_NO_PAD.encode([&expiry, key, tag.as_ref()].concat());
    PortToken { token, expires_at }
}

/// The token's content, if it is valid for this port.
pub(super) fn verify(
    secret: &Secret,
    sandbox: &SandboxId,
    port: Port,
    now: Timestamp,
    token: &str,
) -> Result<PortPass, PortTokenProblem> {
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| PortTokenProblem::Forged)?;
    let (expiry, rest) = bytes.split_first_chunk::<EXPIRY_LEN>().ok_or(PortTokenProblem::Forged)?;
    let (key, tag) = match rest.split_first_chunk::<{ KeyId::BYTES }>() {
        Some((key, tag)) if tag.len() == TAG_LEN => (Some(*key), tag),
        _ if rest.len() == TAG_LEN => (None, rest),
        _ => return Err(PortTokenProblem::Forged),
    };
    // Constant time for every wrong tag.
    hmac::verify(&hmac_key(secret), &message(sandbox, port, *expiry, key), tag)
        .map_err(|_| PortTokenProblem::Forged)?;
    let seconds = i64::from_be_bytes(*expiry);
    let expires_at = Timestamp::from_second(seconds).map_err(|_| PortTokenProblem::Forged)?;
    if now < expires_at {
        Ok(PortPass { expires_at, key: key.map(KeyId::of_bytes) })
    } else {
        Err(PortTokenProblem::Expired)
    }
}

fn hmac_key(secret: &Secret) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

/// Every part but the id has a fixed length for its purpose, so no two tokens share a message.
fn message(
    sandbox: &SandboxId,
    port: Port,
    expiry: [u8; EXPIRY_LEN],
    key: Option<[u8; KeyId::BYTES]>,
) -> Vec<u8> {
    let (purpose, key): (_, &[u8]) = match &key {
        Some(key) => (PURPOSE_OF_KEY, key),
        None => (PURPOSE, &[]),
    };
    let port = port.get().to_be_bytes();
    [purpose, &port, &expiry, key, sandbox.as_str().as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandkeep_home::DataDir;

    fn secret() -> Secret {
        let dir = tempfile::tempdir().expect("a temporary directory");
        DataDir::open(dir.path()).expect("a data directory").secret().clone()
    }

    fn port(number: u16) -> Port {
        Port::new(number).expect("not zero")
    }

    #[test]
    fn a_pass_opens_its_own_port_until_it_expires() {
        let (secret, id, now) = (secret(), SandboxId::random(), Timestamp::now());
        let token = sign(&secret, &id, port(80), now, Duration::from_secs(60), None);
        let at = |seconds: i64| now + jiff::SignedDuration::from_secs(seconds);
        let look =
            |when| verify(&secret, &id, port(80), when, &token.token).map(|pass| pass.expires_at);
        assert_eq!(look(now), Ok(token.expires_at));
        assert_eq!(look(at(58)), Ok(token.expires_at));
        assert_eq!(look(at(61)), Err(PortTokenProblem::Expired));
    }

    #[test]
    fn a_pass_opens_nothing_else_and_cannot_be_changed() {
        let (secret, id, now) = (secret(), SandboxId::random(), Timestamp::now());
        let maker = KeyId::of_hex("00112233445566ff").expect("an id");
        let token = sign(&secret, &id, port(80), now, Duration::from_secs(60), Some(&maker));
        let pass = verify(&secret, &id, port(80), now, &token.token).expect("it is good");
        assert_eq!(pass.key, Some(maker));
        let forged = Err(PortTokenProblem::Forged);
        assert_eq!(verify(&secret, &SandboxId::random(), port(80), now, &token.token), forged);
        assert_eq!(verify(&secret, &id, port(81), now, &token.token), forged);
        assert_eq!(verify(&self::secret(), &id, port(80), now, &token.token), forged);
        let bytes = URL_SAFE_NO_PAD.decode(&token.token).expect("it was encoded here");
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            let token = URL_SAFE_NO_PAD.encode(other);
            assert_eq!(verify(&secret, &id, port(80), now, &token), forged, "byte {at}");
        }
        for token in ["", "x", "!!", &token.token[1..], &format!("{}AAAA", token.token)] {
            assert_eq!(verify(&secret, &id, port(80), now, token), forged, "{token:?}");
        }
    }
}
