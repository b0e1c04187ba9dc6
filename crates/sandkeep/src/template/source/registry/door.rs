//! Getting in: what a registry wants to see before it answers.
//!
//! ```text
//! GET ──▶ 401, Basic     ──▶ user and password, to the registry
//!     ──▶ 401, Bearer    ──▶ user and password, to the realm it names ──▶ a token, to the registry
//! ```
//!
//! Nothing is shown before it is asked for. Credentials go to the registry they are for, and to the realm
//! that it named; what came of it goes to that registry alone.

use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Response, Url};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::challenge::Challenge;
use super::credentials::{Credentials, bearer};
use super::problem::RegistryError;
use super::retry;
use super::trouble::unreachable;
use crate::limits::{REGISTRY_ANSWER, REGISTRY_TOKEN_MAX_BYTES};
use crate::outgoing::{self, Admitted, BodyError, Chosen, Outgoing};

/// The door of one registry, for one repository.
pub struct Door {
    outgoing: Outgoing,
    /// The registry behind it.
    registry: Url,
    repository: String,
    credentials: Option<Credentials>,
    /// What let us in last. Held while somebody gets something new, for whom the others wait.
    shown: Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Door {
    pub fn new(
        outgoing: Outgoing,
        registry: Url,
        repository: String,
        credentials: Option<Credentials>,
    ) -> Self {
        Self { outgoing, registry, repository, credentials, shown: Mutex::default() }
    }

    pub fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    /// What to show with a request, if anything.
    pub async fn header(&self) -> Option<HeaderValue> {
        self.shown.lock().await.clone()
    }

    /// What to show after `refused` was not enough; `None` if there is nothing to show.
    pub async fn answer(
        &self,
        challenge: &Challenge,
        refused: Option<&HeaderValue>,
    ) -> Result<Option<HeaderValue>, RegistryError> {
        let mut shown = self.shown.lock().await;
        // Somebody else was refused as well, and has something new already.
        if shown.is_some() && shown.as_ref() != refused {
            return Ok(shown.clone());
        }
        let header = match (challenge, &self.credentials) {
            (Challenge::Basic, None) => return Ok(None),
            (_, Some(token @ Credentials::Token(_))) => own(token)?,
            (Challenge::Basic, Some(password)) => own(password)?,
            (Challenge::Bearer { realm, service, scope }, _) => {
                let place = self.realm(realm, service.as_deref(), scope.as_deref()).await?;
                self.token(&place).await?
            }
        };
        *shown = Some(header.clone());
        Ok(Some(header))
    }

    fn host(&self) -> String {
        self.registry.host_str().unwrap_or_default().to_owned()
    }

    /// Where the token is to be had, admitted.
    async fn realm(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
    ) -> Result<Admitted, RegistryError> {
        let refused = |source| RegistryError::Realm { host: self.host(), source };
        let mut url = outgoing::url(realm).map_err(refused)?;
        if url.scheme() == "http" && url.host_str() != self.registry.host_str() {
            let realm = outgoing::shown(&url).to_string();
            return Err(RegistryError::PlainRealm { host: self.host(), realm });
        }
        let usual = format!("repository:{}:pull", self.repository);
        let service = service.map(|service| ("service", service));
        let asked = service.into_iter().chain([("scope", scope.unwrap_or(&usual))]);
        url.query_pairs_mut().extend_pairs(asked);
        self.outgoing.admit(&url, Chosen::ByOthers).await.map_err(refused)
    }

    async fn token(&self, realm: &Admitted) -> Result<HeaderValue, RegistryError> {
        let host = realm.url().host_str().unwrap_or_default().to_owned();
        let response = self.ask_for_token(realm, &host).await?;
        match response.status().as_u16() {
            200 => {}
            429 => {
                let retry_after = retry::retry_after(&response);
                return Err(RegistryError::TooManyRequests { host, retry_after });
            }
            401 | 403 => {
                let image = self.repository.clone();
                let said = format!("it answers {}", response.status());
                return Err(match self.credentials {
                    Some(_) => RegistryError::WrongCredentials { host, image, said },
                    None => RegistryError::NeedsCredentials { host, image },
                });
            }
            status => {
                let said = "it gives out no token".to_owned();
                return Err(RegistryError::Status { host, status, said });
            }
        }
        let max_bytes = REGISTRY_TOKEN_MAX_BYTES;
        let body = outgoing::body(response, max_bytes).await.map_err(|e| match e {
            BodyError::TooLarge => RegistryError::TooLarge { host: host.clone(), max_bytes },
            BodyError::Broken(e) => unreachable(&host, e),
        })?;
        let unreadable = || RegistryError::Token { host: host.clone() };
        let token: Token = serde_json::from_slice(&body).map_err(|_| unreadable())?;
        let token = token.token.or(token.access_token).filter(|token| !token.is_empty());
        bearer(&token.ok_or_else(unreadable)?).map_err(|_| unreadable())
    }

    async fn ask_for_token(&self, realm: &Admitted, host: &str) -> Result<Response, RegistryError> {
        let client = realm.client().map_err(RegistryError::Refused)?;
        let password = self.credentials.as_ref().map(own).transpose()?;
        retry::patiently(|| async {
            let mut request = client.get(realm.url().clone()).timeout(REGISTRY_ANSWER);
            if let Some(password) = &password {
                request = request.header(AUTHORIZATION, password.clone());
            }
            request.send().await.map_err(|e| unreachable(host, e))
        })
        .await
    }
}

fn own(credentials: &Credentials) -> Result<HeaderValue, RegistryError> {
    credentials.header().map_err(|_| RegistryError::UnusableCredentials)
}
