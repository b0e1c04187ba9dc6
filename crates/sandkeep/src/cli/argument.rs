//! Arguments that are more than a word.

use std::time::Duration;

use reqwest::Url;

/// What is wrong with an argument; clap says which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidArgument {
    #[error("expected NAME=VALUE")]
    Pair,
    #[error("expected a duration such as 500ms, 30s or 5m")]
    Duration,
    #[error("expected http://ADDRESS:PORT; https is not there yet")]
    Url,
}

/// `NAME=VALUE`; the value may be empty and may hold further `=`.
pub fn pair(text: &str) -> Result<(String, String), InvalidArgument> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err(InvalidArgument::Pair),
    }
}

/// `500ms`, `30s`, `1m30s`.
pub fn duration(text: &str) -> Result<Duration, InvalidArgument> {
    let signed: jiff::SignedDuration = text.parse().map_err(|_| InvalidArgument::Duration)?;
    Duration::try_from(signed).map_err(|_| InvalidArgument::Duration)
}

/// Where a daemon is.
pub fn daemon_url(text: &str) -> Result<Url, InvalidArgument> {
    let url: Url = text.parse().map_err(|_| InvalidArgument::Url)?;
    match (url.scheme(), url.host()) {
        ("http", Some(_)) => Ok(url),
        _ => Err(InvalidArgument::Url),
    }
}
