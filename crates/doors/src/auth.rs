//! Authentication: API keys, tokens of an OIDC issuer, and the switch that makes credentials mandatory.
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
//! Invariant: a credential that cannot be verified is refused. If the store fails, the issuer does not answer or the
//! marker file cannot be read, requests are refused; no failure ever grants access.

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
    /// Only the user who runs the daemon is served, without credentials.
    Local,
    /// Every caller needs credentials, including the user who runs the daemon.
    Keys,
}

/// Why a credential was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("{problem}")]
    Refused { problem: String },
    /// The credential may be valid, but it cannot be verified at the moment.
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

/// How long a response that has started may continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Until it ends. A token states when it expires, not whether it was revoked, and is short-lived.
    Unbound,
    /// As long as the key is valid.
    Key(KeyId),
    /// As long as the signed URL is valid: until it expires or the key that signed it is revoked.
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

/// An authenticated caller, and the credential that proved it.
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
    /// If keys exist, the latch is closed even if its marker file was lost.
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
        if self.oidc.is_some() || self.latch.is_closed() { Mode::Keys } else { Mode::Local }
    }

    pub fn keys(&self) -> &KeyRing {
        &self.keys
    }

    /// Authenticates a credential: an API key, or a token if an issuer is configured.
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

    /// Whether a response with this lease may continue. If the store does not answer, a running response continues.
    pub async fn holds(&self, lease: &Lease) -> bool {
        match lease {
            Lease::Unbound => true,
            Lease::Key(id) => self.keys.holds(id).await,
            Lease::Pass { expires_at, .. } if Timestamp::now() >= *expires_at => false,
            Lease::Pass { key: None, .. } => true,
            Lease::Pass { key: Some(id), .. } => self.keys.holds(id).await,
        }
    }

    /// Whether a new request may start on behalf of a key. If the store does not answer, it may not.
    pub async fn key_holds(&self, id: &KeyId) -> Result<bool, AuthError> {
        Ok(self.keys.info(id).await?.is_some_and(|key| !key.has_expired(Timestamp::now())))
    }
}

/// Adds the scopes that others imply: a scope to change or inspect more includes the right to read.
fn with_implied(scopes: impl IntoIterator<Item = Scope>) -> Scopes {
    let given: Scopes = scopes.into_iter().collect();
    let implied = given.iter().next().map(|_| Scope::Read);
    given.iter().chain(implied).collect()
}

#[cfg(test)]
mod tests;
