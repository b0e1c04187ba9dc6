//! Credentials for a registry: given with a pull, or stored in a file by `docker login`.
//!
//! They are never displayed: `Debug` shows only their kind.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderValue, InvalidHeaderValue};
use serde::Deserialize;

use super::reference::DOCKER_HUB;
use sandkeep_core::limits::REGISTRY_AUTH_MAX_BYTES;

/// The key of Docker Hub in Docker's credentials files.
const DOCKER_HUB_IN_FILES: &str = "index.docker.io";

#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    Password {
        user: String,
        password: String,
    },
    /// Sent to the registry as is.
    Token(String),
    /// Stored by `docker login` instead of a password if the registry issues one: sent only to the registry's token
    /// server, which issues tokens for it.
    Identity(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { .. } => f.write_str("Password(hidden)"),
            Self::Token(_) => f.write_str("Token(hidden)"),
            Self::Identity(_) => f.write_str("Identity(hidden)"),
        }
    }
}

impl Credentials {
    /// The header that carries them; `None` for those that are never sent in one.
    pub(super) fn header(&self) -> Result<Option<HeaderValue>, InvalidHeaderValue> {
        match self {
            Self::Password { user, password } => secret(&basic(user, password)).map(Some),
            Self::Token(token) => bearer(token).map(Some),
            Self::Identity(_) => Ok(None),
        }
    }
}

pub(super) fn bearer(token: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    secret(&format!("Bearer {token}"))
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

fn secret(text: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(text)?;
    value.set_sensitive(true);
    Ok(value)
}

#[derive(Debug, thiserror::Error)]
pub enum AuthFileError {
    #[error("cannot read {path}: {source}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is larger than {REGISTRY_AUTH_MAX_BYTES} bytes")]
    TooLarge { path: PathBuf },
    /// Without the cause, which could quote secrets in the file.
    #[error("{path} is not what `docker login` writes; see line {line}")]
    Syntax { path: PathBuf, line: usize },
    #[error(
        "what {path} has for {host} cannot be used: it must be `auth`, `username` and `password`, `identitytoken`, or `registrytoken`"
    )]
    Entry { path: PathBuf, host: String },
}

/// The relevant part of Docker's `config.json`.
#[derive(Deserialize)]
struct AuthFile {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase", default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// The file's credentials for a host. Read for each pull, so that a login takes effect at once.
pub(super) fn from_file(path: &Path, host: &str) -> Result<Option<Credentials>, AuthFileError> {
    let read = |source| AuthFileError::Read { path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(read)?.len();
    if size > REGISTRY_AUTH_MAX_BYTES {
        return Err(AuthFileError::TooLarge { path: path.to_owned() });
    }
    let bytes = std::fs::read(path).map_err(read)?;
    let file: AuthFile = serde_json::from_slice(&bytes)
        .map_err(|e| AuthFileError::Syntax { path: path.to_owned(), line: e.line() })?;
    let Some((_, entry)) = file.auths.into_iter().find(|(key, _)| host_of(key) == host) else {
        return Ok(None);
    };
    let unusable = || AuthFileError::Entry { path: path.to_owned(), host: host.to_owned() };
    credentials(entry).map(Some).ok_or_else(unusable)
}

/// Keys are hosts, or URLs such as `https://index.docker.io/v1/`.
fn host_of(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    match key.split('/').next().unwrap_or(key) {
        DOCKER_HUB_IN_FILES => DOCKER_HUB,
        host => host,
    }
}

fn credentials(entry: Entry) -> Option<Credentials> {
    if let Some(token) = entry.registrytoken {
        return Some(Credentials::Token(token));
    }
    // In that case `auth` contains a user without a password.
    if let Some(token) = entry.identitytoken.filter(|token| !token.is_empty()) {
        return Some(Credentials::Identity(token));
    }
    if let (Some(user), Some(password)) = (entry.username, entry.password) {
        return Some(Credentials::Password { user, password });
    }
    let joined = String::from_utf8(STANDARD.decode(entry.auth?).ok()?).ok()?;
    let (user, password) = joined.split_once(':')?;
    // Docker pads it with zero bytes.
    let password = password.trim_end_matches('\0').to_owned();
    Some(Credentials::Password { user: user.to_owned(), password })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.json");
        std::fs::write(&path, text).expect("written");
        (dir, path)
    }

    fn password(user: &str, password: &str) -> Option<Credentials> {
        Some(Credentials::Password { user: user.to_owned(), password: password.to_owned() })
    }

    #[test]
    fn what_docker_login_writes_is_read() {
        let (_dir, path) = file(
            r#"{"auths": {
                "https://index.docker.io/v1/": {"auth": "YW5uOnA6dw=="},
                "localhost:5000": {"username": "bob", "password": "x"},
                "ghcr.io": {"registrytoken": "t"},
                "azurecr.io": {"auth": "MDAwMDo=", "identitytoken": "i"},
                "bad.example": {"auth": "!"}
            }, "credsStore": "desktop"}"#,
        );
        let read = |host| from_file(&path, host);
        assert_eq!(read("docker.io").expect("readable"), password("ann", "p:w"));
        assert_eq!(read("localhost:5000").expect("readable"), password("bob", "x"));
        assert_eq!(read("ghcr.io").expect("readable"), Some(Credentials::Token("t".to_owned())));
        let identity = Some(Credentials::Identity("i".to_owned()));
        assert_eq!(read("azurecr.io").expect("readable"), identity);
        assert_eq!(read("localhost:5001").expect("readable"), None);
        assert!(matches!(read("bad.example"), Err(AuthFileError::Entry { .. })));
    }

    #[test]
    fn no_message_quotes_a_secret() {
        let (_dir, path) = file("{\"auths\": {\"a.example\": {\"auth\": hunter2}}}");
        let problem = from_file(&path, "a.example").expect_err("no JSON");
        assert!(!format!("{problem} {problem:?}").contains("hunter2"), "{problem:?}");
        let credentials = password("ann", "hunter2").expect("some");
        assert!(!format!("{credentials:?}").contains("hunter2"));
        let header = credentials.header().expect("a header").expect("it is shown");
        assert!(header.is_sensitive());
        let identity = Credentials::Identity("hunter2".to_owned());
        assert!(!format!("{identity:?}").contains("hunter2"));
        assert_eq!(identity.header().expect("none"), None, "no registry sees it");
    }
}
