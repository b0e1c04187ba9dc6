//! Where the issuer's keys come from: asked for, kept for a while, asked for again.
//!
//! ```text
//! age      0 ───────── JWKS_FRESH ───────────────── JWKS_KEEP ─────▶
//! known    used        asked for anew; if that      asked for anew; if that fails,
//! key                  fails, used all the same     nobody is let in
//! unknown  asked for anew at once, within the rate that spares the issuer
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

/// Where an issuer describes itself, beneath its own URL.
const DISCOVERY: &str = "/.well-known/openid-configuration";

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Place(#[from] OutgoingError),
    #[error("the keys of the issuer cannot be used: {0}")]
    KeySet(#[from] InvalidKeySet),
    #[error("the description of the issuer cannot be read: {0}")]
    Description(#[from] serde_json::Error),
    #[error("the description is that of another issuer, {issuer:?}")]
    OtherIssuer { issuer: String },
    #[error("its keys were requested too often; the last error: {last}")]
    TooOften { last: String },
}

/// Where the keys are.
enum Place {
    Known(Url),
    /// To be asked from the issuer.
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

/// When the issuer was asked of late, and how the last time ended.
#[derive(Default)]
struct Asked {
    times: VecDeque<Instant>,
    last: String,
}

pub struct Source {
    place: Place,
    cached: RwLock<Option<Cached>>,
    /// Held by the one who asks; the others wait for what comes of it.
    asked: Mutex<Asked>,
}

impl Source {
    pub fn new(config: &OidcConfig) -> Result<Self, InvalidOidc> {
        let read = |field, text: &str| {
            url(text).map_err(|e| InvalidOidc::Url { field, problem: e.to_string() })
        };
        let place = match &config.jwks_url {
            Some(text) => Place::Known(read("jwks_url", text)?),
            None => {
                let text = format!("{}{DISCOVERY}", config.issuer.trim_end_matches('/'));
                let description = read("issuer", &text)?;
                Place::Discovered { description, issuer: config.issuer.clone() }
            }
        };
        Ok(Self { place, cached: RwLock::default(), asked: Mutex::default() })
    }

    /// The keys to check a token with. Whether the one it names is among them, the caller sees.
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
                // The rate is what anybody with a made-up token can reach; it is no news.
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
        // Only whole values are ever put there, so a poisoned lock guards a whole one.
        self.cached.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks for keys that are newer than those of `seen`, unless somebody else just did.
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
            Place::Known(url) => (url.clone(), Chosen::ByUs),
            Place::Discovered { description, issuer } => discover(description, issuer).await?,
        };
        Ok(KeySet::parse(&outgoing::get(&url, chosen).await?)?)
    }
}

#[derive(Deserialize)]
struct Description {
    issuer: String,
    jwks_uri: String,
}

/// Where the issuer says that its keys are. Its own host is as good as configured.
async fn discover(description: &Url, issuer: &str) -> Result<(Url, Chosen), FetchError> {
    let bytes = outgoing::get(description, Chosen::ByUs).await?;
    let described: Description = serde_json::from_slice(&bytes)?;
    if described.issuer != issuer {
        return Err(FetchError::OtherIssuer { issuer: described.issuer });
    }
    let url = url(&described.jwks_uri)?;
    let chosen = match url.origin() == description.origin() {
        true => Chosen::ByUs,
        false => Chosen::ByOthers,
    };
    Ok((url, chosen))
}
