//! The server's side of gRPC over HTTP/2, with messages of Protocol Buffers. It knows no service: a door brings its
//! messages and its handlers.
//!
//! ```text
//!   request   application/grpc   messages in frames: one, or a stream of them
//!   answer    200                messages in frames, and trailers that say how it ended
//!             200                headers that say so, if there is nothing else to say
//! ```
//!
//! A message is at most 4 MiB; compressed ones are refused, as the protocol allows. `grpc-timeout` is a deadline for the
//! whole call. A call whose client cancels it, or disconnects, is dropped.

mod message;
mod status;

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use prost::Message;

use crate::kit::Refusal;
use crate::rpc::Deadline;
use sandkeep_core::limits::{GRPC_MESSAGE_MAX_BYTES, GRPC_TIMEOUT_MAX_DIGITS};

pub use message::{Messages, Unary};
pub use status::Status;

/// Flags and length.
const HEAD_LEN: usize = 5;
pub const MEDIA_TYPE: &str = "application/grpc";

/// A message as a frame. One that clients would not take is refused here, where it can still be said.
fn framed(message: &impl Message) -> Result<Bytes, Refusal> {
    let length = message.encoded_len();
    if length > GRPC_MESSAGE_MAX_BYTES {
        return Err(Refusal::AnswerTooLarge { limit_bytes: GRPC_MESSAGE_MAX_BYTES });
    }
    let mut frame = BytesMut::with_capacity(HEAD_LEN + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).expect("it is within the bound"));
    message.encode(&mut frame).expect("there is as much room as it asked for");
    Ok(frame.freeze())
}

fn answer(body: Body) -> Response {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    answer
}

/// The answer of a call that has one message.
pub struct Reply<M>(pub M);

impl<M: Message> IntoResponse for Reply<M> {
    fn into_response(self) -> Response {
        match framed(&self.0) {
            Ok(frame) => {
                let trailers = async { Some(Ok(Status::ok_trailers())) };
                answer(Body::new(Full::new(frame).with_trailers(trailers)))
            }
            Err(refusal) => refusal.into_response(),
        }
    }
}

/// The answer of a call that has a stream of messages, which may end with an error. `said` puts that into words.
pub fn streamed<M, S>(messages: S, said: fn(&Refusal) -> Status) -> Response
where
    M: Message,
    S: Stream<Item = Result<M, Refusal>> + Send + 'static,
{
    let frames = messages.map(|message| message.and_then(|message| framed(&message)));
    let parts = stream::unfold(Some(Box::pin(frames)), move |frames| async move {
        let mut frames = frames?;
        Some(match frames.next().await {
            Some(Ok(frame)) => (Frame::data(frame), Some(frames)),
            Some(Err(refusal)) => {
                refusal.log();
                (Frame::trailers(said(&refusal).trailers()), None)
            }
            None => (Frame::trailers(Status::ok_trailers()), None),
        })
    });
    answer(Body::new(StreamBody::new(parts.map(Ok::<_, std::convert::Infallible>))))
}

/// Holds a call to its deadline.
pub async fn keep_deadline(request: Request, next: Next) -> Response {
    match deadline(request.headers()) {
        Ok(deadline) => deadline.keep(request, next).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// What `grpc-timeout` says: digits and a unit.
fn deadline(headers: &HeaderMap) -> Result<Deadline, Refusal> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(Deadline::none()) };
    let time = value.to_str().ok().and_then(time);
    time.map(Deadline::after).ok_or_else(|| Refusal::BodyMalformed {
        field: Some("grpc-timeout".to_owned()),
        problem: "expected at most eight digits and one of H, M, S, m, u, n".to_owned(),
    })
}

fn time(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || !(1..=GRPC_TIMEOUT_MAX_DIGITS).contains(&digits.len()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 60 * 60),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_digits_and_a_unit() {
        for (text, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("30S", Duration::from_secs(30)),
            ("250m", Duration::from_millis(250)),
            ("99999999u", Duration::from_micros(99_999_999)),
            ("0n", Duration::ZERO),
        ] {
            assert_eq!(time(text), Some(expected), "{text}");
        }
        for wrong in ["", "S", "1", "-1S", "1.5S", "123456789S", "1s", "1\u{e9}"] {
            assert_eq!(time(wrong), None, "{wrong:?}");
        }
    }
}
