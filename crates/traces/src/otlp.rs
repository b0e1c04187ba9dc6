//! The exporter: OTLP over HTTP with protobuf, to one collector.
//!
//! ```text
//!   queue ──▶ batch (512 spans, or what comes within a second) ──▶ POST ──▶ 2xx: counted
//!                                                    ▲                └──▶ 429, 502, 503, 504, no answer
//!                                                    └── 1 s, 2 s, 4 s … five attempts, then dropped
//! ```
//!
//! One batch is under way at a time. Spans that come meanwhile wait in the queue, which is bounded. So a collector that is
//! slow or away costs spans and nothing else.

mod encode;
#[cfg(test)]
mod tests;

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Client, StatusCode, Url};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::recorder::{ExportMetrics, FinishedSpans, WhyDropped};
use crate::span::FinishedSpan;
use sandkeep_core::{limits, with_causes};
use sandkeep_outgoing::{Chosen, Outgoing, OutgoingError, body};

const MEDIA_TYPE: &str = "application/x-protobuf";

/// Where spans go.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// All of it, including `/v1/traces`.
    pub url: Url,
    /// Credentials, for example.
    pub headers: HeaderMap,
    /// How long the collector may take to answer.
    pub answer: Duration,
    /// What all spans are of: `service.name` and so on.
    pub resource: Vec<(String, String)>,
    pub outgoing: Outgoing,
}

/// The task that exports, until it is stopped.
pub struct Exporter {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Exporter {
    pub fn start(options: ExportOptions, spans: FinishedSpans, metrics: ExportMetrics) -> Self {
        sandkeep_outgoing::crypto::provide();
        let stop = CancellationToken::new();
        let mut export =
            Export { options, spans, metrics, stop: stop.clone(), client: None, is_failing: false };
        let task = tokio::spawn(async move { export.run().await });
        Self { stop, task }
    }

    /// Waits for a bounded time until what is in the queue is exported.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if tokio::time::timeout(limits::SPANS_DRAIN, &mut self.task).await.is_err() {
            warn!("the last spans could not be exported in time");
            self.task.abort();
        }
    }
}

struct Export {
    options: ExportOptions,
    spans: FinishedSpans,
    metrics: ExportMetrics,
    stop: CancellationToken,
    /// For the addresses that the collector had then.
    client: Option<(Client, Instant)>,
    /// Failures are logged when they begin and when they end.
    is_failing: bool,
}

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Outgoing(#[from] OutgoingError),
    #[error("the collector cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    #[error("the collector is busy: it answered {status}")]
    Busy { status: StatusCode, retry_after: Option<Duration> },
    #[error("the collector refused the spans: it answered {status}{said}")]
    Refused { status: StatusCode, said: String },
}

impl Export {
    async fn run(&mut self) {
        loop {
            let batch = self.batch().await;
            let overflown = self.spans.take_overflown();
            self.metrics.dropped(WhyDropped::Full, overflown);
            if batch.is_empty() {
                return;
            }
            self.export(&batch).await;
        }
    }

    /// The next spans; none when it is stopped and nothing is left.
    async fn batch(&mut self) -> Vec<FinishedSpan> {
        let (max, mut batch) = (limits::SPANS_BATCH_MAX, Vec::new());
        let queue = &mut self.spans.queue;
        tokio::select! {
            biased;
            _ = queue.recv_many(&mut batch, max) => {}
            () = self.stop.cancelled() => return batch,
        }
        let filled = async {
            while batch.len() < max {
                let left = max - batch.len();
                if queue.recv_many(&mut batch, left).await == 0 {
                    break;
                }
            }
        };
        tokio::select! {
            biased;
            () = filled => {}
            () = tokio::time::sleep(limits::SPANS_DELAY) => {}
            () = self.stop.cancelled() => {}
        }
        batch
    }

    async fn export(&mut self, batch: &[FinishedSpan]) {
        let count = batch.len() as u64;
        let message = encode::request(&self.options.resource, batch);
        for attempt in 1..=limits::SPANS_ATTEMPTS_MAX {
            let error = match self.send(message.clone()).await {
                Ok(answer) => {
                    let rejected = answer.rejected.min(count);
                    self.metrics.exported.inc_by(count - rejected);
                    self.metrics.dropped(WhyDropped::Refused, rejected);
                    return self.note(rejected, &answer.said);
                }
                Err(error) => error,
            };
            if !self.is_failing {
                warn!("spans are not exported for now: {}", with_causes(&error));
                self.is_failing = true;
            }
            if let ExportError::Refused { .. } = error {
                return self.metrics.dropped(WhyDropped::Refused, count);
            }
            self.client = None;
            let usual = limits::SPANS_RETRY_FIRST * (1 << (attempt - 1).min(8));
            let asked = match error {
                ExportError::Busy { retry_after, .. } => retry_after,
                _ => None,
            };
            let pause = asked.unwrap_or(usual).min(limits::SPANS_RETRY_MAX);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // Its last attempt is over.
                () = self.stop.cancelled() => break,
            }
        }
        self.metrics.dropped(WhyDropped::Unanswered, count);
    }

    fn note(&mut self, rejected: u64, said: &str) {
        match (rejected, self.is_failing) {
            (0, true) => info!("spans are exported again"),
            (0, false) | (_, true) => {}
            (_, false) => warn!("the collector rejected {rejected} spans: {said}"),
        }
        self.is_failing = rejected > 0;
    }

    async fn send(&mut self, message: Vec<u8>) -> Result<encode::Answer, ExportError> {
        let client = self.client().await?;
        let request = client
            .post(self.options.url.clone())
            .headers(self.options.headers.clone())
            .header(CONTENT_TYPE, MEDIA_TYPE)
            .timeout(self.options.answer)
            .body(message);
        let response =
            request.send().await.map_err(|e| ExportError::Unreachable(e.without_url()))?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let said = body(response, limits::SPANS_ANSWER_MAX_BYTES).await.unwrap_or_default();
        match status.as_u16() {
            200..=299 => Ok(encode::answer(&said)),
            429 | 502..=504 => {
                let retry_after = retry_after.map(Duration::from_secs);
                Err(ExportError::Busy { status, retry_after })
            }
            _ => Err(ExportError::Refused { status, said: excerpt(&said) }),
        }
    }

    async fn client(&mut self) -> Result<Client, ExportError> {
        if let Some((client, since)) = &self.client
            && since.elapsed() < limits::SPANS_CLIENT
        {
            return Ok(client.clone());
        }
        let Self { options: ExportOptions { outgoing, url, .. }, .. } = self;
        let client = outgoing.admit(url, Chosen::ByUs).await?.client()?;
        self.client = Some((client.clone(), Instant::now()));
        Ok(client)
    }
}

/// The beginning of an answer, for the log, if it is a text.
fn excerpt(said: &[u8]) -> String {
    const SHOWN: usize = 200;
    let text = String::from_utf8_lossy(&said[..said.len().min(SHOWN)]);
    let text = text.trim();
    if text.is_empty() || text.chars().any(|c| c.is_control() && c != '\n') {
        String::new()
    } else {
        format!(": {}", text.replace('\n', " "))
    }
}
