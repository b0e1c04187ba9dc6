//! One attempt to deliver a message.
//!
//! An answer of 2xx within its time, read to its end, is success. Everything else is failure: a redirect too, because it
//! could lead to an address that was not checked.

use std::time::{Duration, Instant};

use reqwest::header::{CONTENT_TYPE, USER_AGENT};
use reqwest::{Client, StatusCode, Url};

use super::secret::Secret;
use sandkeep_core::event::CloudEvent;
use sandkeep_core::{limits, with_causes};
use sandkeep_outgoing::{BodyError, Chosen, Outgoing};

const AGENT: &str = concat!("sandkeep/", env!("CARGO_PKG_VERSION"));

/// Why a message was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The receiver wants no more messages.
    Gone,
    /// It may take them later.
    Failed(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gone => f.write_str("the receiver answered 410 Gone"),
            Self::Failed(problem) => f.write_str(problem),
        }
    }
}

/// The way to one receiver. Its addresses are checked again after a while and after each failure.
pub struct Receiver {
    outgoing: Outgoing,
    url: Url,
    client: Option<(Client, Instant)>,
}

impl Receiver {
    pub fn new(outgoing: &Outgoing, url: Url) -> Self {
        Self { outgoing: outgoing.clone(), url, client: None }
    }

    /// Sends a message. `seconds` is the time of this attempt.
    pub async fn send(
        &mut self,
        message: &CloudEvent,
        secret: &Secret,
        seconds: i64,
    ) -> Result<(), Failure> {
        let sent =
            tokio::time::timeout(limits::WEBHOOK_ANSWER, self.attempt(message, secret, seconds));
        let result = sent.await.unwrap_or_else(|_| {
            let limit = limits::WEBHOOK_ANSWER.as_secs();
            Err(Failure::Failed(format!("the receiver did not answer within {limit} s")))
        });
        if result.is_err() {
            self.client = None;
        }
        result
    }

    async fn attempt(
        &mut self,
        message: &CloudEvent,
        secret: &Secret,
        seconds: i64,
    ) -> Result<(), Failure> {
        let client = self.client().await?;
        let body = serde_json::to_vec(message).expect("a message holds strings and numbers");
        let request = client
            .post(self.url.clone())
            .header(CONTENT_TYPE, CloudEvent::MEDIA_TYPE)
            .header(USER_AGENT, AGENT)
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", seconds)
            .header("webhook-signature", secret.sign(&message.id, seconds, &body));
        let answer = request.body(body).send().await.map_err(unreachable)?;
        match answer.status() {
            StatusCode::GONE => return Err(Failure::Gone),
            status if status.is_success() => {}
            status => return Err(Failure::Failed(format!("the receiver answered {status}"))),
        }
        match sandkeep_outgoing::body(answer, limits::WEBHOOK_ANSWER_MAX_BYTES).await {
            // It has taken the message; what else it has to say is not read.
            Ok(_) | Err(BodyError::TooLarge) => Ok(()),
            Err(BodyError::Broken(error)) => {
                let problem = with_causes(&error.without_url());
                Err(Failure::Failed(format!("the answer broke off: {problem}")))
            }
        }
    }

    async fn client(&mut self) -> Result<Client, Failure> {
        if let Some((client, since)) = &self.client
            && since.elapsed() < limits::WEBHOOK_ADDRESS_KEPT
        {
            return Ok(client.clone());
        }
        let refused = |error| Failure::Failed(with_causes(&error));
        let admitted = self.outgoing.admit(&self.url, Chosen::ByOthers).await.map_err(refused)?;
        let client = admitted.client().map_err(refused)?;
        self.client = Some((client.clone(), Instant::now()));
        Ok(client)
    }
}

/// A URL may contain a secret of its own, and is not repeated.
fn unreachable(error: reqwest::Error) -> Failure {
    Failure::Failed(format!("cannot reach the receiver: {}", with_causes(&error.without_url())))
}

/// How long to wait after so many failures: twice as long after each, at most an hour, and between half of that and all
/// of it, so that receivers which failed together are not tried together. `random` is any number.
pub fn backoff(failures: u64, random: u32) -> Duration {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(20);
    let full = limits::WEBHOOK_BACKOFF_FIRST.saturating_mul(1 << doublings);
    let full = full.min(limits::WEBHOOK_BACKOFF_MAX);
    full / 2 + (full / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_attempts_doubles_up_to_an_hour() {
        let longest = |failures| backoff(failures, u32::MAX);
        assert_eq!(longest(1), limits::WEBHOOK_BACKOFF_FIRST);
        assert_eq!(longest(4), limits::WEBHOOK_BACKOFF_FIRST * 8);
        for failures in [0, 1, 5, 12, 100, u64::MAX] {
            let (least, most) = (backoff(failures, 0), longest(failures));
            assert_eq!(least, most / 2, "jitter takes at most half");
            assert!(most <= limits::WEBHOOK_BACKOFF_MAX);
        }
        assert_eq!(longest(u64::MAX), limits::WEBHOOK_BACKOFF_MAX);
    }
}
