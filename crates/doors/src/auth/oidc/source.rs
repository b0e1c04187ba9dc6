//! The issuer's keys: fetched, cached for a while, and fetched again.
//!
//! ```text
//! age      0 ───────── JWKS_FRESH ───────────────── JWKS_KEEP ─────▶
//! known    used        fetched again; if that       fetched again; if that fails,
//! key                  fails, used all the same     tokens are refused
//! unknown  fetched at once, within the rate limit that spares the issuer
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use jsonwebtoken::Algorithm;
use reqwest::Url;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::jwks::{InvalidKeySet, KeySet};
use super::outgoing::{self, RequestError};
use super::{InvalidOidc, OidcConfig};
use crate::auth::AuthError;
use sandkeep_core::limits::{JWKS_FETCHES_MAX, JWKS_FETCHES_WITHIN, JWKS_FRESH, JWKS_KEEP};
use sandkeep_outgoing::{Chosen, OutgoingError, url};

/// Path of an issuer's discovery document, below the issuer's URL.
const DISCOVERY: &str = "/.well-known/openid-configuration";

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    KeysLocation(#[from] OutgoingError),
    #[error("the keys of the issuer cannot be used: {0}")]
    KeySet(#[from] InvalidKeySet),
    #[error("the description of the issuer cannot be read: {0}")]
    Description(#[from] serde_json::Error),
    #[error("the description is that of another issuer, {issuer:?}")]
    OtherIssuer { issuer: String },
    #[error("its keys were requested too often; the last error: {last}")]
    TooOften { last: String },
}

/// Where the keys are published.
enum KeysLocation {
    Known(Url),
    /// Read from the issuer's discovery document.
    Discovered {
        description: Url,
        issuer: String,
    },
}

#[derive(Clone)]
struct Cached {
    keys: Arc<KeySet>,
    fetched: Instant,
}

/// When the issuer was last queried, and with what result.
#[derive(Default)]
struct FetchHistory {
    times: VecDeque<Instant>,
    last: String,
}

pub struct Source {
    place: KeysLocation,
    cached: RwLock<Option<Cached>>,
    /// Held by the task that fetches; the others wait for its result.
    asked: Mutex<FetchHistory>,
}

impl Source {
    pub fn new(config: &OidcConfig) -> Result<Self, InvalidOidc> {
        let read = |field, text: &str| {
            url(text).map_err(|e| InvalidOidc::Url { field, problem: e.to_string() })
        };
        let place = match &config.jwks_url {
            Some(text) => KeysLocation::Known(read("jwks_url", text)?),
            None => {
                let text = format!("{}{DISCOVERY}", config.issuer.trim_end_matches('/'));
                let description = read("issuer", &text)?;
                KeysLocation::Discovered { description, issuer: config.issuer.clone() }
            }
        };
        Ok(Self { place, cached: RwLock::default(), asked: Mutex::default() })
    }

    /// The keys to verify a token with. The caller checks whether the named key is among them.
    pub async fn keys_for(
        &self,
        algorithm: Algorithm,
        kid: Option<&str>,
    ) -> Result<Arc<KeySet>, AuthError> {
        let cached = self.cached();
        let age = cached.as_ref().map(|cached| cached.fetched.elapsed());
        if let (Some(cached), Some(age)) = (&cached, age)
            && age < JWKS_FRESH
            && cached.keys.candidates(algorithm, kid).next().is_some()
        {
            return Ok(Arc::clone(&cached.keys));
        }
        match (self.fetch(cached.as_ref().map(|cached| cached.fetched)).await, cached, age) {
            (Ok(keys), ..) => Ok(keys),
            (Err(error), Some(cached), Some(age)) if age < JWKS_KEEP => {
                // Anybody with a made-up token can reach this rate limit, so it is not worth a warning.
                match error {
                    FetchError::TooOften { .. } => tracing::debug!("{error}"),
                    _ => tracing::warn!("the issuer's keys could not be renewed: {error}"),
                }
                Ok(cached.keys)
            }
            (Err(error), ..) => Err(AuthError::Unavailable {
                problem: format!("the keys of the issuer are not known: {error}"),
            }),
        }
    }

    fn cached(&self) -> Option<Cached> {
        // Only complete values are stored, so even a poisoned lock guards a valid one.
        self.cached.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fetches keys that are newer than those of `seen`, unless another task has just done so.
    async fn fetch(&self, seen: Option<Instant>) -> Result<Arc<KeySet>, FetchError> {
        let mut asked = self.asked.lock().await;
        if let Some(newer) = self.cached().filter(|cached| Some(cached.fetched) > seen) {
            return Ok(newer.keys);
        }
        while asked.times.front().is_some_and(|time| time.elapsed() >= JWKS_FETCHES_WITHIN) {
            asked.times.pop_front();
        }
        if asked.times.len() >= JWKS_FETCHES_MAX {
            return Err(FetchError::TooOften { last: asked.last.clone() });
        }
        asked.times.push_back(Instant::now());
        let fetched = Instant::now();
        let result = self.ask().await.map(Arc::new);
        asked.last = match &result {
            Ok(keys) => {
                let cached = Cached { keys: Arc::clone(keys), fetched };
                *self.cached.write().unwrap_or_else(PoisonError::into_inner) = Some(cached);
                "it answered".to_owned()
            }
            Err(error) => error.to_string(),
        };
        result
    }

    async fn ask(&self) -> Result<KeySet, FetchError> {
        let (url, chosen) = match &self.place {
            KeysLocation::Known(url) => (url.clone(), Chosen::ByUs),
            KeysLocation::Discovered { description, issuer } => {
                discover(description, issuer).await?
            }
        };
        Ok(KeySet::parse(&outgoing::get(&url, chosen).await?)?)
    }
}

#[derive(Deserialize)]
struct Description {
    issuer: String,
    jwks_uri: String,
}

/// Reads the keys' URL from the discovery document. The issuer's own host counts as configured.
async fn discover(description: &Url, issuer: &str) -> Result<(Url, Chosen), FetchError> {
    let bytes = outgoing::get(description, Chosen::ByUs).await?;
    let described: Description = serde_json::from_slice(&bytes)?;
    if described.issuer != issuer {
        return Err(FetchError::OtherIssuer { issuer: described.issuer });
    }
    let url = url(&described.jwks_uri)?;
    let chosen = if url.origin() == description.origin() { Chosen::ByUs } else { Chosen::ByOthers };
    Ok((url, chosen))
}
