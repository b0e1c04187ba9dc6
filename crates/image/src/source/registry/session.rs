//! The connection to one registry for one repository.
//!
//! The rules for outgoing connections admit every address before it is contacted, including redirects. Credentials are
//! sent only to the registry's own origin, and never again once a request was redirected elsewhere.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, LOCATION, RANGE};
use reqwest::{Client, Response, StatusCode, Url};

use super::challenge::challenge;
use super::credentials::Credentials;
use super::door::Door;
use super::problem::RegistryError;
use super::reference::Reference;
use super::trouble::{Trouble, trouble, unreachable};
use super::{retry, said};
use crate::manifest::ACCEPTED;
use sandkeep_core::limits::{REGISTRY_ANSWER, REGISTRY_REDIRECTS_MAX, REGISTRY_SAID_MAX_BYTES};
use sandkeep_outgoing::{self, BodyError, Chosen, Outgoing};
use sandkeep_tree::digest::{Digest, Mismatch};

pub struct Session {
    outgoing: Outgoing,
    reference: Reference,
    /// `https://host/v2/`
    base: Url,
    client: Client,
    door: Door,
    /// Clients for the origins of redirects.
    elsewhere: Mutex<HashMap<String, Client>>,
}

/// An object of the repository.
#[derive(Clone, Debug)]
pub enum Thing {
    /// By tag or digest.
    Manifest(String),
    /// From this byte on.
    Blob { digest: Digest, from_bytes: u64 },
}

impl Thing {
    fn path(&self) -> String {
        match self {
            Self::Manifest(name) => format!("manifests/{name}"),
            Self::Blob { digest, .. } => format!("blobs/{digest}"),
        }
    }

    fn in_words(&self) -> String {
        match self {
            Self::Manifest(name) => format!("image {name}"),
            Self::Blob { digest, .. } => format!("blob {digest}"),
        }
    }

    fn headers(&self, mut request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match self {
            Self::Manifest(_) => request = request.header(ACCEPT, ACCEPTED.join(", ")),
            Self::Blob { from_bytes: 0, .. } => {}
            Self::Blob { from_bytes, .. } => {
                request = request.header(RANGE, format!("bytes={from_bytes}-"));
            }
        }
        request
    }
}

/// A manifest as received, and its declared type.
pub struct Document {
    pub bytes: Vec<u8>,
    pub media_type: Option<String>,
}

impl Session {
    pub async fn open(
        outgoing: &Outgoing,
        reference: &Reference,
        credentials: Option<Credentials>,
    ) -> Result<Self, RegistryError> {
        let (base, client) = find(outgoing, reference.api_host()).await?;
        let repository = reference.repository().to_owned();
        let door = Door::new(outgoing.clone(), base.clone(), repository, credentials);
        let (outgoing, reference) = (outgoing.clone(), reference.clone());
        Ok(Self { outgoing, reference, base, client, door, elsewhere: Mutex::default() })
    }

    pub fn host(&self) -> String {
        self.reference.host().to_owned()
    }

    /// Requests an object, with retries. The answer is a success: 200, 206, or 416 for a blob that ends before the
    /// requested byte.
    pub async fn get(&self, thing: &Thing) -> Result<Response, RegistryError> {
        let response = retry::patiently(|| self.once(thing)).await?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                Ok(response)
            }
            _ => Err(self.refusal(thing, response).await),
        }
    }

    /// A manifest or an index by name; if that is a digest, it is verified.
    pub async fn manifest(&self, name: &str, max_bytes: usize) -> Result<Document, RegistryError> {
        let response = self.get(&Thing::Manifest(name.to_owned())).await?;
        let header = |name: &str| response.headers().get(name)?.to_str().ok();
        let media_type = header("content-type").map(|text| text.split(';').next().unwrap_or(text));
        let media_type = media_type.map(|text| text.trim().to_ascii_lowercase());
        let promised = header("docker-content-digest").and_then(|text| text.parse().ok());
        let bytes = self.body(response, max_bytes).await?;
        let expected: Option<Digest> = name.parse().ok();
        for expected in expected.into_iter().chain(promised) {
            self.check(&bytes, expected)?;
        }
        Ok(Document { bytes, media_type })
    }

    /// A small blob, in memory.
    pub async fn small_blob(
        &self,
        digest: Digest,
        max_bytes: usize,
    ) -> Result<Vec<u8>, RegistryError> {
        let response = self.get(&Thing::Blob { digest, from_bytes: 0 }).await?;
        let bytes = self.body(response, max_bytes).await?;
        self.check(&bytes, digest)?;
        Ok(bytes)
    }

    fn check(&self, bytes: &[u8], expected: Digest) -> Result<(), RegistryError> {
        let found = Digest::of(bytes);
        if found == expected {
            Ok(())
        } else {
            Err(self.mismatch(Mismatch::Digest { expected, found }))
        }
    }

    pub fn mismatch(&self, mismatch: Mismatch) -> RegistryError {
        RegistryError::Mismatch { host: self.host(), mismatch }
    }

    async fn body(&self, response: Response, max_bytes: usize) -> Result<Vec<u8>, RegistryError> {
        let host = self.host();
        let read = sandkeep_outgoing::body(response, max_bytes);
        match tokio::time::timeout(REGISTRY_ANSWER, read).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(BodyError::TooLarge)) => Err(RegistryError::TooLarge { host, max_bytes }),
            Ok(Err(BodyError::Broken(e))) => Err(unreachable(&host, e)),
            Err(_) => Err(silent(&host)),
        }
    }

    async fn once(&self, thing: &Thing) -> Result<Response, RegistryError> {
        let path = format!("{}/{}", self.reference.repository(), thing.path());
        let url = self.base.join(&path).expect("a checked name is a path");
        let shown = self.door.header().await;
        let response = self.send(&self.client, &url, thing, shown.as_ref()).await?;
        let challenge = match response.status() {
            StatusCode::UNAUTHORIZED => challenge(response.headers()),
            _ => return self.follow(url, response, thing, shown).await,
        };
        let Some(challenge) = challenge else { return Ok(response) };
        match self.door.answer(&challenge, shown.as_ref()).await? {
            None => Ok(response),
            Some(header) => {
                let response = self.send(&self.client, &url, thing, Some(&header)).await?;
                self.follow(url, response, thing, Some(header)).await
            }
        }
    }

    /// Follows redirects step by step, each checked.
    async fn follow(
        &self,
        mut at: Url,
        mut response: Response,
        thing: &Thing,
        mut shown: Option<HeaderValue>,
    ) -> Result<Response, RegistryError> {
        for _ in 0..REGISTRY_REDIRECTS_MAX {
            let Some(next) = self.sent_on(&at, &response)? else { return Ok(response) };
            if next.origin() != self.base.origin() {
                shown = None;
            }
            let client = self.client_for(&next).await?;
            response = self.send(&client, &next, thing, shown.as_ref()).await?;
            at = next;
        }
        Err(RegistryError::Redirects { host: self.host() })
    }

    fn sent_on(&self, at: &Url, response: &Response) -> Result<Option<Url>, RegistryError> {
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let refused = |source| RegistryError::Redirect { host: self.host(), source };
        let Some(location) = response.headers().get(LOCATION) else { return Ok(None) };
        let location = String::from_utf8_lossy(location.as_bytes());
        let next = at.join(&location).map_err(|_| {
            refused(sandkeep_outgoing::OutgoingError::NotAUrl {
                url: said::plain(location.as_bytes()),
            })
        })?;
        Ok(Some(next))
    }

    async fn client_for(&self, url: &Url) -> Result<Client, RegistryError> {
        if url.origin() == self.base.origin() {
            return Ok(self.client.clone());
        }
        let origin = url.origin().ascii_serialization();
        let known = || self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = known().get(&origin) {
            return Ok(client.clone());
        }
        let refused = |source| RegistryError::Redirect { host: self.host(), source };
        let admitted = self.outgoing.admit(url, Chosen::ByOthers).await.map_err(refused)?;
        let client = admitted.client().map_err(refused)?;
        known().insert(origin, client.clone());
        Ok(client)
    }

    async fn send(
        &self,
        client: &Client,
        url: &Url,
        thing: &Thing,
        shown: Option<&HeaderValue>,
    ) -> Result<Response, RegistryError> {
        let mut request = thing.headers(client.get(url.clone()));
        if let Some(shown) = shown {
            request = request.header(AUTHORIZATION, shown.clone());
        }
        let host = url.host_str().unwrap_or_default();
        match tokio::time::timeout(REGISTRY_ANSWER, request.send()).await {
            Ok(answer) => answer.map_err(|e| unreachable(host, e)),
            Err(_) => Err(silent(host)),
        }
    }

    /// The error of an unexpected answer.
    async fn refusal(&self, thing: &Thing, response: Response) -> RegistryError {
        let (host, status) = (self.host(), response.status());
        let image = self.reference.familiar();
        let retry_after = retry::retry_after(&response);
        // If the body is unreadable, only the status is reported.
        let said = self.body(response, REGISTRY_SAID_MAX_BYTES).await.unwrap_or_default();
        let said = said::in_words(&said).unwrap_or_else(|| status.to_string());
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.door.has_credentials() => {
                RegistryError::WrongCredentials { host, image, said }
            }
            StatusCode::UNAUTHORIZED => RegistryError::NeedsCredentials { host, image },
            StatusCode::NOT_FOUND => {
                let what = format!("{} of {}", thing.in_words(), self.reference.repository());
                RegistryError::NotFound { host, what, said }
            }
            StatusCode::TOO_MANY_REQUESTS => RegistryError::TooManyRequests { host, retry_after },
            _ => RegistryError::Status { host, status: status.as_u16(), said },
        }
    }
}

fn silent(host: &str) -> RegistryError {
    let problem = format!("it said nothing for {} s", REGISTRY_ANSWER.as_secs());
    RegistryError::Unreachable { host: host.to_owned(), problem }
}

/// The registry's URL. A registry on this machine may do without TLS, as Docker allows: TLS is tried first, and plain
/// HTTP only if the server does not speak TLS. A server with an invalid certificate does speak it.
async fn find(outgoing: &Outgoing, host: &str) -> Result<(Url, Client), RegistryError> {
    let refused = RegistryError::Refused;
    let place =
        |scheme: &str| sandkeep_outgoing::url(&format!("{scheme}://{host}/v2/")).map_err(refused);
    let secure = place("https")?;
    let admitted = outgoing.admit(&secure, Chosen::ByOthers).await.map_err(refused)?;
    let client = admitted.client().map_err(refused)?;
    if !sandkeep_outgoing::is_loopback(secure.host_str().unwrap_or_default()) {
        return Ok((secure, client));
    }
    match client.get(secure.clone()).timeout(REGISTRY_ANSWER).send().await {
        Err(e) if trouble(&e) == Trouble::NoTls => {
            let plain = place("http")?;
            let admitted = outgoing.admit(&plain, Chosen::ByOthers).await.map_err(refused)?;
            Ok((plain, admitted.client().map_err(refused)?))
        }
        // Other problems show with the next request.
        Ok(_) | Err(_) => Ok((secure, client)),
    }
}
