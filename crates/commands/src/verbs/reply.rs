//! Answers as messages: whole in one, or in parts with one that says how it ended.
//!
//! ```text
//!   Sandkeep-Status: 200                            the status of the request, and the headers of its answer
//!   Nats-Service-Error, Nats-Service-Error-Code     besides, if it failed
//!   Sandkeep-Seq: 0, 1, …  Sandkeep-Offset: BYTES   parts of a stream, in order
//!   Sandkeep-End: complete                          the last one, without a payload
//! ```

use std::pin::pin;

use axum::body::Body;
use axum::http::{HeaderName, header};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use sandkeep_core::limits::REPLY_HEADERS_MAX_BYTES;
use sandkeep_doors::kit::Refusal;
use sandkeep_nats::async_nats::{Client, HeaderMap, PublishError, Subject};

use super::refused;

const STATUS: &str = "Sandkeep-Status";
const SEQ: &str = "Sandkeep-Seq";
const OFFSET: &str = "Sandkeep-Offset";
const END: &str = "Sandkeep-End";
/// What tools for micro services look at.
const SERVICE_ERROR: &str = "Nats-Service-Error";
const SERVICE_ERROR_CODE: &str = "Nats-Service-Error-Code";

/// Headers of answers that mean something without a connection.
const PASSED: &[HeaderName] = &[
    header::CONTENT_TYPE,
    header::LOCATION,
    header::RETRY_AFTER,
    header::CONTENT_RANGE,
    header::WWW_AUTHENTICATE,
];
const PASSED_PREFIXES: [&str; 3] = ["x-sandkeep-", "x-correlation-id", "trace"];

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Complete,
    /// It broke off: what came is not all.
    Broken,
    TimedOut,
    ShuttingDown,
}

impl End {
    fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Broken => "broken",
            Self::TimedOut => "timed_out",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

/// Where one answer goes.
pub struct Replier {
    client: Client,
    reply: Subject,
    /// The most bytes of a payload.
    max_bytes: usize,
}

impl Replier {
    pub fn new(client: Client, reply: Subject) -> Self {
        let max_bytes = client.max_payload().saturating_sub(REPLY_HEADERS_MAX_BYTES);
        Self { client, reply, max_bytes }
    }

    /// Answers with one message. Tells what was wrong, if the answer is an error.
    pub async fn whole(&self, response: Response) -> Option<String> {
        let (head, body) = response.into_parts();
        let body = match Limited::new(body, self.max_bytes).collect().await {
            Ok(body) => body.to_bytes(),
            Err(e) => {
                let refusal = if e.is::<LengthLimitError>() {
                    Refusal::AnswerTooLarge { limit_bytes: self.max_bytes }
                } else {
                    Refusal::BodyBroken { problem: e.to_string() }
                };
                let (head, body) = refused(&refusal, &self.reply).into_parts();
                // A problem is short.
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                return self.say(headers(&Response::from_parts(head, Body::empty())), body).await;
            }
        };
        self.say(headers(&Response::from_parts(head, Body::empty())), body).await
    }

    async fn say(&self, mut headers: HeaderMap, body: Bytes) -> Option<String> {
        let problem = problem_in(&headers, &body);
        if let Some((status, problem)) = &problem {
            headers.insert(SERVICE_ERROR, plain(problem).as_str());
            headers.insert(SERVICE_ERROR_CODE, status.as_str());
        }
        if let Err(error) = self.publish(headers, body).await {
            tracing::debug!(reply = %self.reply, %error, "an answer could not be sent");
        }
        problem.map(|(_, problem)| problem)
    }

    /// Answers with as many messages as it takes, and one that says how it ended.
    pub async fn stream(
        &self,
        response: Response,
        cut: impl Future<Output = End>,
    ) -> Option<String> {
        if !response.status().is_success() {
            return self.whole(response).await;
        }
        let mut first = Some(headers(&response));
        let mut body = response.into_body();
        let mut cut = pin!(cut);
        let (mut seq, mut offset) = (0_u64, 0_u64);
        let end = loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                end = &mut cut => break end,
            };
            let data = match frame {
                None => break End::Complete,
                Some(Err(_)) => break End::Broken,
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            for part in parts(data, self.max_bytes) {
                let mut headers = first.take().unwrap_or_default();
                headers.insert(SEQ, seq.to_string().as_str());
                headers.insert(OFFSET, offset.to_string().as_str());
                seq += 1;
                offset += part.len() as u64;
                if self.publish(headers, part).await.is_err() {
                    return Some("the answer could not be sent".to_owned());
                }
            }
        };
        let mut headers = first.take().unwrap_or_default();
        headers.insert(SEQ, seq.to_string().as_str());
        headers.insert(OFFSET, offset.to_string().as_str());
        headers.insert(END, end.as_str());
        let _ = self.publish(headers, Bytes::new()).await;
        (end != End::Complete).then(|| end.as_str().to_owned())
    }

    async fn publish(&self, headers: HeaderMap, payload: Bytes) -> Result<(), PublishError> {
        self.client.publish_with_headers(self.reply.clone(), headers, payload).await
    }
}

/// Pieces that fit into messages; none of nothing.
fn parts(mut data: Bytes, max_bytes: usize) -> Vec<Bytes> {
    let mut parts = Vec::new();
    while !data.is_empty() {
        parts.push(data.split_to(data.len().min(max_bytes.max(1))));
    }
    parts
}

/// What is said about an answer beside its body.
fn headers(response: &Response) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(STATUS, response.status().as_str());
    for (name, value) in response.headers() {
        let passed = PASSED.contains(name)
            || PASSED_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix));
        if let (true, Ok(value)) = (passed, value.to_str()) {
            headers.append(name.as_str(), plain(value).as_str());
        }
    }
    headers
}

/// The status of an error, and what it is about.
fn problem_in(headers: &HeaderMap, body: &[u8]) -> Option<(String, String)> {
    let status = headers.get(STATUS)?.as_str().to_owned();
    if status.as_str() < "400" {
        return None;
    }
    let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = problem["detail"].as_str().or(problem["title"].as_str()).unwrap_or("failed");
    Some((status, detail.chars().take(512).collect()))
}

/// A text that a header can have.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_of_it_and_none_is_too_large() {
        let data = Bytes::from_static(b"0123456789");
        for (max, count) in [(1, 10), (3, 4), (10, 1), (11, 1)] {
            let parts = parts(data.clone(), max);
            assert_eq!(parts.len(), count);
            assert!(parts.iter().all(|part| part.len() <= max));
            assert_eq!(parts.concat(), data);
        }
        assert!(parts(Bytes::new(), 5).is_empty());
    }

    #[test]
    fn an_error_is_said_in_headers_without_line_breaks() {
        let mut headers = HeaderMap::new();
        headers.insert(STATUS, "404");
        let body = br#"{"detail":"there is\r\nno sandbox"}"#;
        let (status, problem) = problem_in(&headers, body).expect("an error");
        assert_eq!((status.as_str(), plain(&problem).as_str()), ("404", "there is  no sandbox"));
        headers.insert(STATUS, "201");
        assert!(problem_in(&headers, body).is_none());
    }
}
