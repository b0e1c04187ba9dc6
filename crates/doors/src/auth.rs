//! Who asks: API keys, tokens of an OIDC issuer, and the switch that says whether one is needed.
//!
//! ```text
//!            no key was ever made, no issuer is configured
//!   Local ───────────────────────────────────────────────▶ the user who runs the daemon
//!     │ the first key, for good
//!     ▼
//!   Keys ──▶ sk_<id>_<secret>   looked up in the store, for every request anew
//!        └─▶ a JWT              checked against the issuer's keys
//! ```
//!
//! Invariant: whatever cannot be checked is refused. A store that fails, an issuer that does not answer, a
//! marker that cannot be read: each of them closes the door, and none opens it.

mod key;
mod key_ring;
mod latch;
mod oidc;

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

use sandkeep_broker::error::Error;
use sandkeep_broker::{Directory, DirectoryError};
use sandkeep_core::KeyId;
use sandkeep_core::{Principal, Scope, Scopes};

pub use key::ApiKey;
pub use key_ring::{KeyDraft, KeyInfo, KeyRing, NewKey};
pub use latch::Latch;
pub use oidc::{InvalidOidc, Oidc, OidcConfig};

/// Whether a request needs a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only the user who runs the daemon is served, and needs none.
    Local,
    /// Everybody needs one, the user who runs the daemon too.
    Keys,
}

/// Why a credential was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("{problem}")]
    Refused { problem: String },
    /// It may be good, but nobody can tell now.
    #[error("the credential cannot be checked now: {problem}")]
    Unavailable { problem: String },
}

impl AuthError {
    fn refused(problem: impl Into<String>) -> Self {
        Self::Refused { problem: problem.into() }
    }
}

impl From<DirectoryError> for AuthError {
    fn from(error: DirectoryError) -> Self {
        Self::Unavailable { problem: sandkeep_core::with_causes(&error) }
    }
}

/// For how long an answer that was begun may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// To its end: tokens say when they expire, not that they were revoked, and are short-lived.
    Unbound,
    /// As long as the key holds.
    Key(KeyId),
    /// As long as a signed URL holds: until it expires, or the key that signed it does not hold any more.
    Pass { key: Option<KeyId>, expires_at: Timestamp },
}

impl Lease {
    pub fn key(&self) -> Option<&KeyId> {
        match self {
            Self::Unbound => None,
            Self::Key(key) => Some(key),
            Self::Pass { key, .. } => key.as_ref(),
        }
    }
}

/// Who was recognized, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recognized {
    pub principal: Principal,
    pub lease: Lease,
}

/// The authentication of one daemon.
pub struct Auth {
    latch: Arc<Latch>,
    keys: KeyRing,
    oidc: Option<Oidc>,
}

impl Auth {
    /// Keys that are already there close the latch, should its marker have been lost.
    pub async fn open(
        data_dir: &Path,
        directory: Arc<dyn Directory>,
        oidc: Option<Oidc>,
    ) -> Result<Self, Error> {
        let latch = Arc::new(Latch::of(data_dir));
        let keys = KeyRing::new(directory, Arc::clone(&latch));
        keys.close_if_used().await?;
        Ok(Self { latch, keys, oidc })
    }

    pub fn mode(&self) -> Mode {
        match self.oidc.is_some() || self.latch.is_closed() {
            true => Mode::Keys,
            false => Mode::Local,
        }
    }

    pub fn keys(&self) -> &KeyRing {
        &self.keys
    }

    /// Whose credential it is: that of a key, or a token if an issuer is configured.
    pub async fn recognize(&self, credential: &str) -> Result<Recognized, AuthError> {
        if let Some(key) = ApiKey::parse(credential) {
            let principal = self.keys.recognize(&key).await?;
            return Ok(Recognized { principal, lease: Lease::Key(key.id().clone()) });
        }
        match &self.oidc {
            Some(oidc) => {
                let principal = oidc.recognize(credential).await?;
                Ok(Recognized { principal, lease: Lease::Unbound })
            }
            None => Err(AuthError::refused("the credential is not an API key")),
        }
    }

    /// Whether an answer under this lease may go on. A store that does not answer ends nothing that it
    /// let begin.
    pub async fn holds(&self, lease: &Lease) -> bool {
        match lease {
            Lease::Unbound => true,
            Lease::Key(id) => self.keys.holds(id).await,
            Lease::Pass { expires_at, .. } if Timestamp::now() >= *expires_at => false,
            Lease::Pass { key: None, .. } => true,
            Lease::Pass { key: Some(id), .. } => self.keys.holds(id).await,
        }
    }

    /// Whether something new may begin in the name of a key. Without an answer of the store it may not.
    pub async fn key_holds(&self, id: &KeyId) -> Result<bool, AuthError> {
        Ok(self.keys.info(id).await?.is_some_and(|key| !key.has_expired(Timestamp::now())))
    }
}

/// Scopes as they are meant: who may change or look at more may also look.
fn with_implied(scopes: impl IntoIterator<Item = Scope>) -> Scopes {
    let given: Scopes = scopes.into_iter().collect();
    let implied = given.iter().next().map(|_| Scope::Read);
    given.iter().chain(implied).collect()
}

#[cfg(test)]
mod tests;
