//! The connection to a daemon: its address, its certificates, and the API key.

use std::ffi::OsStr;
use std::path::Path;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Certificate, ClientBuilder, Url};
use sandkeep_core::limits::CONNECT;

use crate::{Client, Error};

/// The default address of a daemon.
pub const URL_DEFAULT: &str = "http://127.0.0.1:4500";

/// An API key. It is never displayed.
pub struct ApiKey(HeaderValue);

impl ApiKey {
    pub const VARIABLE: &str = "SANDKEEP_API_KEY";

    pub fn new(text: &OsStr) -> Result<Self, Error> {
        let value =
            text.to_str().map(|text| HeaderValue::from_str(&format!("Bearer {}", text.trim())));
        let Some(Ok(mut value)) = value else {
            return Err(Error::InvalidKey { variable: Self::VARIABLE });
        };
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

impl Client {
    /// `authority` is a file with certificates to trust, for a daemon with a self-signed one.
    pub fn new(base: &Url, key: Option<ApiKey>, authority: Option<&Path>) -> Result<Self, Error> {
        let builder = builder(key);
        let builder = match (authority, base.scheme()) {
            (Some(file), _) => builder.tls_certs_only(certificates(file)?),
            // A plain connection needs no certificates, so those of this machine need not be read.
            (None, "http") => builder.tls_certs_only([]),
            (None, _) => builder,
        };
        Self::built(base.clone(), builder)
    }

    /// A daemon that listens on a Unix socket.
    pub fn unix(socket: &Path, key: Option<ApiKey>) -> Result<Self, Error> {
        let base = Url::parse("http://localhost").expect("it is a URL");
        Self::built(base, builder(key).unix_socket(socket).tls_certs_only([]))
    }

    /// The daemon named by the environment, as for the command line: `SANDKEEP_URL` (default [`URL_DEFAULT`]),
    /// `SANDKEEP_API_KEY` and `SANDKEEP_CA_FILE`.
    pub fn from_env() -> Result<Self, Error> {
        let url = std::env::var_os("SANDKEEP_URL").unwrap_or_else(|| URL_DEFAULT.into());
        let url = url.to_string_lossy();
        let base = url.parse().map_err(|_| Error::InvalidUrl { url: url.into_owned() })?;
        let key = std::env::var_os(ApiKey::VARIABLE);
        let key = key.map(|key| ApiKey::new(&key)).transpose()?;
        Self::new(&base, key, std::env::var_os("SANDKEEP_CA_FILE").as_deref().map(Path::new))
    }

    fn built(base: Url, builder: ClientBuilder) -> Result<Self, Error> {
        let unusable = |source| Error::Unreachable { url: base.to_string(), source };
        let http = builder.build().map_err(unusable)?;
        Ok(Self { base, http, traceparent: None })
    }
}

fn builder(key: Option<ApiKey>) -> ClientBuilder {
    // An error means that the process has already selected its TLS implementation.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let headers: HeaderMap = key.map(|ApiKey(value)| (AUTHORIZATION, value)).into_iter().collect();
    // A proxy from the environment is for the internet, not for a daemon on loopback.
    let builder = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT);
    builder.default_headers(headers)
}

fn certificates(file: &Path) -> Result<Vec<Certificate>, Error> {
    let unusable = |problem: String| Error::Certificates { file: file.to_owned(), problem };
    let pem = std::fs::read(file).map_err(|e| unusable(e.to_string()))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) | Err(_) => Err(unusable("it holds no certificates in PEM".to_owned())),
    }
}
