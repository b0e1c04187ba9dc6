//! The server's side of the Connect protocol with JSON, over HTTP/1.1 and HTTP/2: unary calls, and calls that answer with
//! a stream. It knows no service: a door brings its messages and its handlers.
//!
//! ```text
//!   unary    application/json           one message           ─▶ one message, or an error with a status of its own
//!   stream   application/connect+json   one message in a frame ─▶ 200, frames, and one that says how it ended
//! ```
//!
//! A message is at most 16 MiB, as it is sent and decompressed. `Connect-Timeout-Ms` is a deadline for the whole call.

mod message;

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use serde_json::{Value, json};

use crate::kit::Refusal;
use crate::kit::frames::{Envelope, connect};
use sandkeep_core::limits::CONNECT_TIMEOUT_MAX_DIGITS;

pub use crate::rpc::{Code, Deadline};
pub use message::{Message, StreamMessage};

/// How a call is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Unary,
    Stream,
}

impl Form {
    fn media_type(self) -> &'static str {
        match self {
            Self::Unary => "application/json",
            Self::Stream => "application/connect+json",
        }
    }
}

/// An error in the words of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    fn body(&self) -> Value {
        json!({ "code": self.code.as_str(), "message": self.message })
    }

    /// The answer to a call of this form. A stream says it in its last frame, with the status of success.
    pub fn answer(&self, form: Form) -> Response {
        match form {
            Form::Unary => (self.code.status(), axum::Json(self.body())).into_response(),
            Form::Stream => stream_answer(Body::from(self.frame())),
        }
    }

    /// The last frame of a stream that failed.
    pub fn frame(&self) -> Bytes {
        connect(Envelope::End, &json!({ "error": self.body() }))
    }
}

/// The last frame of a stream that succeeded.
pub fn end_frame() -> Bytes {
    connect(Envelope::End, &json!({}))
}

/// The answer whose frames are this stream.
pub fn streamed<E>(frames: impl Stream<Item = Result<Bytes, E>> + Send + 'static) -> Response
where
    E: Into<axum::BoxError> + 'static,
{
    stream_answer(Body::from_stream(frames))
}

fn stream_answer(body: Body) -> Response {
    let headers =
        [(header::CONTENT_TYPE, Form::Stream.media_type()), (header::CACHE_CONTROL, "no-store")];
    (StatusCode::OK, headers, body).into_response()
}

/// What `Connect-Timeout-Ms` says.
fn deadline(headers: &HeaderMap) -> Result<Deadline, Refusal> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(Deadline::none()) };
    let text = value.to_str().unwrap_or_default();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let millis = if digits && (1..=CONNECT_TIMEOUT_MAX_DIGITS).contains(&text.len()) {
        text.parse().ok()
    } else {
        None
    };
    let Some(millis) = millis else {
        let problem = "expected at most ten digits".to_owned();
        return Err(Refusal::BodyMalformed {
            field: Some("Connect-Timeout-Ms".to_owned()),
            problem,
        });
    };
    Ok(Deadline::after(Duration::from_millis(millis)))
}

/// Holds a call to its deadline.
pub async fn keep_deadline(request: Request, next: Next) -> Response {
    match deadline(request.headers()) {
        Ok(deadline) => deadline.keep(request, next).await,
        Err(refusal) => refusal.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_has_at_most_ten_digits() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("connect-timeout-ms", text.parse().expect("a value"));
            deadline(&headers)
        };
        let is_30 = |deadline: Deadline| deadline.time().is_some_and(|time| time.as_secs() == 30);
        assert!(of("30000").is_ok_and(is_30));
        for wrong in ["", "-1", "+1", "1.5", "12345678901", "soon"] {
            assert!(of(wrong).is_err(), "{wrong:?} was accepted");
        }
        assert!(deadline(&HeaderMap::new()).is_ok_and(|deadline| deadline.time().is_none()));
    }
}
