//! When to retry, and when to give up.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};

use super::problem::RegistryError;
use sandkeep_core::limits::{
    REGISTRY_ATTEMPTS_MAX, REGISTRY_RETRY_AFTER_MAX, REGISTRY_RETRY_MAX, REGISTRY_RETRY_MIN,
};

/// Pauses that double, up to a maximum number.
#[derive(Default)]
pub struct Attempts {
    failed: u32,
}

impl Attempts {
    /// After a failure: how long to wait before the next attempt, or `None` to give up. The server's `Retry-After` is
    /// honoured, unless it is too long.
    pub fn pause(&mut self, asked: Option<Duration>) -> Option<Duration> {
        self.failed += 1;
        let own = REGISTRY_RETRY_MIN.saturating_mul(1 << (self.failed - 1).min(16));
        let pause = asked.unwrap_or(own.min(REGISTRY_RETRY_MAX));
        let again = self.failed < REGISTRY_ATTEMPTS_MAX && pause <= REGISTRY_RETRY_AFTER_MAX;
        again.then_some(pause)
    }

    /// Resets the count after sufficient progress.
    pub fn begin_anew(&mut self) {
        self.failed = 0;
    }
}

/// Retries until the answer is final, or further attempts make no sense.
pub async fn patiently<F, A>(send: F) -> Result<Response, RegistryError>
where
    F: Fn() -> A,
    A: Future<Output = Result<Response, RegistryError>>,
{
    let mut attempts = Attempts::default();
    loop {
        let answer = send().await;
        let asked = match &answer {
            Ok(response) if is_passing(response.status()) => retry_after(response),
            Err(RegistryError::Unreachable { .. }) => None,
            Ok(_) | Err(_) => return answer,
        };
        match attempts.pause(asked) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return answer,
        }
    }
}

/// Whether the same request may succeed later.
fn is_passing(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The answer's `Retry-After`.
pub fn retry_after(response: &Response) -> Option<Duration> {
    wait(response.headers(), Timestamp::now())
}

fn wait(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let seconds = then.as_second().saturating_sub(now.as_second());
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let mut attempts = Attempts::default();
        let pauses: Vec<_> = std::iter::from_fn(|| attempts.pause(None)).collect();
        assert_eq!(pauses.len() + 1, REGISTRY_ATTEMPTS_MAX as usize);
        assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= REGISTRY_RETRY_MAX));
        attempts.begin_anew();
        assert_eq!(attempts.pause(None), Some(REGISTRY_RETRY_MIN));
    }

    #[test]
    fn a_registry_is_given_the_time_it_asks_for_within_reason() {
        let mut attempts = Attempts::default();
        assert_eq!(attempts.pause(Some(Duration::ZERO)), Some(Duration::ZERO));
        assert_eq!(attempts.pause(Some(REGISTRY_RETRY_AFTER_MAX)), Some(REGISTRY_RETRY_AFTER_MAX));
        assert_eq!(attempts.pause(Some(REGISTRY_RETRY_AFTER_MAX * 2)), None);
    }

    #[test]
    fn the_time_is_told_in_seconds_or_as_a_date() {
        let now: Timestamp = "2015-10-21T07:28:00Z".parse().expect("a time");
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().expect("a header"));
            wait(&headers, now)
        };
        assert_eq!(read("7"), Some(Duration::from_secs(7)));
        assert_eq!(read("Wed, 21 Oct 2015 07:28:05 GMT"), Some(Duration::from_secs(5)));
        assert_eq!(read("Wed, 21 Oct 2015 07:27:00 GMT"), Some(Duration::ZERO));
        assert_eq!(read("soon"), None);
        assert_eq!(wait(&HeaderMap::new(), now), None);
    }
}
