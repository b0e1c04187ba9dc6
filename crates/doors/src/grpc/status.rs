//! How a call ended, in headers or trailers.

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;

use super::answer;
use crate::rpc::Code;
use sandkeep_core::limits::GRPC_STATUS_MAX_BYTES;

const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";

/// An error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: Code,
    pub message: String,
}

impl Status {
    /// Of a call that succeeded.
    pub fn ok_trailers() -> HeaderMap {
        HeaderMap::from_iter([(STATUS.parse().expect("a name"), HeaderValue::from_static("0"))])
    }

    pub fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        trailers.insert(STATUS, HeaderValue::from(u16::from(self.code.number())));
        if let Ok(message) = HeaderValue::try_from(encoded(&self.message)) {
            trailers.insert(MESSAGE, message);
        }
        trailers
    }

    /// An answer that has nothing else.
    pub fn answer(&self) -> Response {
        let mut answer = answer(Body::empty());
        answer.headers_mut().extend(self.trailers());
        answer
    }
}

/// Printable ASCII; everything else, and the percent sign, as the bytes of its UTF-8.
fn encoded(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => write!(text, "%{byte:02X}").expect("a string takes all"),
        }
        if text.len() > GRPC_STATUS_MAX_BYTES {
            text.push_str("...");
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_printable_and_bounded() {
        assert_eq!(encoded("50% of é\n"), "50%25 of %C3%A9%0A");
        assert!(encoded(&"x".repeat(1 << 20)).len() < GRPC_STATUS_MAX_BYTES + 8);
        let status = Status { code: Code::NotFound, message: "there is no é".to_owned() };
        let answer = status.answer();
        assert_eq!(answer.headers()["grpc-status"], "5");
        assert_eq!(answer.headers()["grpc-message"], "there is no %C3%A9");
    }
}
