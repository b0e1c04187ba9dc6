//! Arguments that need parsing.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::Url;

/// What is wrong with an argument; clap adds its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidArgument {
    #[error("expected NAME=VALUE")]
    Pair,
    #[error("expected a duration such as 500ms, 30s or 5m, or a number of seconds")]
    Duration,
    #[error("expected whole seconds such as 90, 30m or 2h")]
    Seconds,
    #[error("expected a duration such as 30d, 12h or 90m, or a time such as 2030-01-31T12:00:00Z")]
    Expiry,
    #[error("expected a duration such as 10m, or a time such as 2030-01-31T12:00:00Z")]
    Since,
    #[error("expected http://ADDRESS:PORT or https://ADDRESS:PORT")]
    Url,
    #[error("expected SEQ:HASH as `sandkeep audit head` prints it")]
    AuditHead,
}

/// `NAME=VALUE`; the value may be empty and may hold further `=`.
pub fn pair(text: &str) -> Result<(String, String), InvalidArgument> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err(InvalidArgument::Pair),
    }
}

/// `500ms`, `30s`, `1m30s`; a number alone is seconds.
pub fn duration(text: &str) -> Result<Duration, InvalidArgument> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let signed: jiff::SignedDuration = text.parse().map_err(|_| InvalidArgument::Duration)?;
    Duration::try_from(signed).map_err(|_| InvalidArgument::Duration)
}

/// A duration of whole seconds, as the API has for timeouts.
pub fn seconds(text: &str) -> Result<u64, InvalidArgument> {
    let duration = duration(text).map_err(|_| InvalidArgument::Seconds)?;
    match duration.subsec_nanos() {
        0 => Ok(duration.as_secs()),
        _ => Err(InvalidArgument::Seconds),
    }
}

/// `30d`, `12h`, or an RFC 3339 time.
pub fn expiry(text: &str) -> Result<Timestamp, InvalidArgument> {
    const DAY_SECS: u64 = 24 * 60 * 60;
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    // A day has 24 hours here; other moments can be given as a time.
    let length = match text.strip_suffix('d').map(str::parse::<u64>) {
        Some(Ok(days)) => Duration::from_secs(days.saturating_mul(DAY_SECS)),
        Some(Err(_)) | None => duration(text).map_err(|_| InvalidArgument::Expiry)?,
    };
    Timestamp::now().checked_add(length).map_err(|_| InvalidArgument::Expiry)
}

/// A time in the past: `10m` ago, or an RFC 3339 time.
pub fn since(text: &str) -> Result<Timestamp, InvalidArgument> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let length = duration(text).map_err(|_| InvalidArgument::Since)?;
    Timestamp::now().checked_sub(length).map_err(|_| InvalidArgument::Since)
}

/// The URL of a daemon.
pub fn daemon_url(text: &str) -> Result<Url, InvalidArgument> {
    let url: Url = text.parse().map_err(|_| InvalidArgument::Url)?;
    match (url.scheme(), url.host()) {
        ("http" | "https", Some(_)) => Ok(url),
        _ => Err(InvalidArgument::Url),
    }
}
