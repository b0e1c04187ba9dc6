//! Signatures of [Standard Webhooks](https://www.standardwebhooks.com): HMAC-SHA256 over id, time and body.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::Error;
use sandkeep_core::limits::{WEBHOOK_SECRET_MAX_BYTES, WEBHOOK_SECRET_MIN_BYTES};

const PREFIX: &str = "whsec_";
/// The version of the scheme.
const VERSION: &str = "v1";
const NEW_BYTES: usize = 32;

/// What a webhook's messages are signed with.
#[derive(Clone)]
pub struct Secret {
    text: String,
    key: hmac::Key,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; NEW_BYTES];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| wrong("cannot be made: the system has no random bytes"))?;
        Self::parse(&format!("{PREFIX}{}", BASE64.encode(bytes)))
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        let bytes = text.strip_prefix(PREFIX).and_then(|rest| BASE64.decode(rest).ok());
        let range = WEBHOOK_SECRET_MIN_BYTES..=WEBHOOK_SECRET_MAX_BYTES;
        match bytes.filter(|bytes| range.contains(&bytes.len())) {
            Some(bytes) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
                Ok(Self { text: text.to_owned(), key })
            }
            None => Err(wrong(format!(
                "must be {PREFIX} and {WEBHOOK_SECRET_MIN_BYTES} to {WEBHOOK_SECRET_MAX_BYTES} bytes in base64"
            ))),
        }
    }

    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// The value of the header `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("{VERSION},{}", BASE64.encode(context.sign()))
    }
}

fn wrong(problem: impl Into<String>) -> Error {
    Error::InvalidField { field: "secret", problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_specification() {
        // The example of the reference implementations.
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
        let signature =
            secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_is_made_or_read_and_never_printed() {
        let made = Secret::random().expect("a secret");
        assert!(Secret::parse(made.reveal()).is_ok());
        assert_ne!(made.reveal(), Secret::random().expect("a secret").reveal());
        assert!(!format!("{made:?}").contains(made.reveal()));
        for text in ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2hvcnQ=", "whsec_%"]
        {
            assert!(Secret::parse(text).is_err(), "{text}");
        }
    }
}
