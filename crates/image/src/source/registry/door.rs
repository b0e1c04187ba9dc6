//! Authentication at a registry.
//!
//! ```text
//! GET ──▶ 401, Basic     ──▶ user and password, to the registry
//!     ──▶ 401, Bearer    ──▶ user and password, to the realm it names ──▶ a token, to the registry
//!                        ──▶ an identity token, to that realm (OAuth 2) ─┘
//! ```
//!
//! Credentials are sent only when they are requested. They go to their registry, and to the realm that it named; the
//! resulting token goes to that registry alone.

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Response, Url};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::challenge::Challenge;
use super::credentials::{Credentials, bearer};
use super::problem::RegistryError;
use super::retry;
use super::trouble::unreachable;
use sandkeep_core::limits::{REGISTRY_ANSWER, REGISTRY_TOKEN_MAX_BYTES};
use sandkeep_outgoing::{self, BodyError, CheckedUrl, Chosen, Outgoing};

/// Authenticates at one registry, for one repository.
pub struct Door {
    outgoing: Outgoing,
    /// The registry.
    registry: Url,
    repository: String,
    credentials: Option<Credentials>,
    /// The last accepted header. Held while one task obtains a new one, for which the others wait.
    shown: Mutex<Option<HeaderValue>>,
}

/// The parameters of a token request.
type TokenParameters = Vec<(&'static str, String)>;

#[derive(Deserialize)]
struct RegistryToken {
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

    /// The header to send with a request, if any.
    pub async fn header(&self) -> Option<HeaderValue> {
        self.shown.lock().await.clone()
    }

    /// The header to send after `refused` was rejected; `None` if there is none.
    pub async fn answer(
        &self,
        challenge: &Challenge,
        refused: Option<&HeaderValue>,
    ) -> Result<Option<HeaderValue>, RegistryError> {
        let mut shown = self.shown.lock().await;
        // Another task was refused as well, and already has a new one.
        if shown.is_some() && shown.as_ref() != refused {
            return Ok(shown.clone());
        }
        let header = match (challenge, &self.credentials) {
            (_, Some(token @ Credentials::Token(_))) => own(token)?,
            (Challenge::Basic, credentials) => credentials.as_ref().map_or(Ok(None), own)?,
            (Challenge::Bearer { realm, service, scope }, _) => {
                let asked = self.asked(service.as_deref(), scope.as_deref());
                let place = self.realm(realm, &asked).await?;
                Some(self.token(&place, &asked).await?)
            }
        };
        let Some(header) = header else { return Ok(None) };
        *shown = Some(header.clone());
        Ok(Some(header))
    }

    fn host(&self) -> String {
        self.registry.host_str().unwrap_or_default().to_owned()
    }

    /// The parameters of a token request.
    fn asked(&self, service: Option<&str>, scope: Option<&str>) -> TokenParameters {
        let usual = format!("repository:{}:pull", self.repository);
        let service = service.map(|service| ("service", service.to_owned()));
        let scope = ("scope", scope.map_or(usual, str::to_owned));
        service.into_iter().chain([scope]).collect()
    }

    /// The token server's address, admitted.
    async fn realm(
        &self,
        realm: &str,
        asked: &TokenParameters,
    ) -> Result<CheckedUrl, RegistryError> {
        let refused = |source| RegistryError::Realm { host: self.host(), source };
        let mut url = sandkeep_outgoing::url(realm).map_err(refused)?;
        if url.scheme() == "http" && url.host_str() != self.registry.host_str() {
            let realm = sandkeep_outgoing::shown(&url).to_string();
            return Err(RegistryError::PlainRealm { host: self.host(), realm });
        }
        match self.credentials {
            // Sent in the body instead.
            Some(Credentials::Identity(_)) => {}
            Some(_) | None => drop(url.query_pairs_mut().extend_pairs(asked)),
        }
        self.outgoing.admit(&url, Chosen::ByOthers).await.map_err(refused)
    }

    async fn token(
        &self,
        realm: &CheckedUrl,
        asked: &TokenParameters,
    ) -> Result<HeaderValue, RegistryError> {
        let host = realm.url().host_str().unwrap_or_default().to_owned();
        let response = self.ask_for_token(realm, &host, asked).await?;
        match response.status().as_u16() {
            200 => {}
            429 => {
                let retry_after = retry::retry_after(&response);
                return Err(RegistryError::TooManyRequests { host, retry_after });
            }
            // The last is OAuth 2's answer to an unknown identity token.
            401 | 403 | 400 => {
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
        let body = sandkeep_outgoing::body(response, max_bytes).await.map_err(|e| match e {
            BodyError::TooLarge => RegistryError::TooLarge { host: host.clone(), max_bytes },
            BodyError::Broken(e) => unreachable(&host, e),
        })?;
        let unreadable = || RegistryError::Token { host: host.clone() };
        let token: RegistryToken = serde_json::from_slice(&body).map_err(|_| unreadable())?;
        let token = token.token.or(token.access_token).filter(|token| !token.is_empty());
        bearer(&token.ok_or_else(unreadable)?).map_err(|_| unreadable())
    }

    async fn ask_for_token(
        &self,
        realm: &CheckedUrl,
        host: &str,
        asked: &TokenParameters,
    ) -> Result<Response, RegistryError> {
        let client = realm.client().map_err(RegistryError::Refused)?;
        let password = self.credentials.as_ref().map_or(Ok(None), own)?;
        let url = realm.url();
        retry::patiently(|| async {
            let request = match (&self.credentials, &password) {
                (Some(Credentials::Identity(identity)), _) => client
                    .post(url.clone())
                    .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body(refreshing(identity, asked)),
                (_, Some(password)) => {
                    client.get(url.clone()).header(AUTHORIZATION, password.clone())
                }
                (_, None) => client.get(url.clone()),
            };
            request.timeout(REGISTRY_ANSWER).send().await.map_err(|e| unreachable(host, e))
        })
        .await
    }
}

/// An OAuth 2 request for a token by a refresh token.
fn refreshing(identity: &str, asked: &TokenParameters) -> String {
    let fixed = [("grant_type", "refresh_token"), ("client_id", "sandkeep")];
    let mut form = Url::parse("form:").expect("it is one");
    form.query_pairs_mut()
        .extend_pairs(fixed)
        .extend_pairs(asked)
        .append_pair("refresh_token", identity);
    form.query().unwrap_or_default().to_owned()
}

fn own(credentials: &Credentials) -> Result<Option<HeaderValue>, RegistryError> {
    credentials.header().map_err(|_| RegistryError::UnusableCredentials)
}
