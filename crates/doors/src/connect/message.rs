//! Reading the one message of a call, bounded in size and time whatever is sent.

use std::io::Read;

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use flate2::read::GzDecoder;
use serde::de::DeserializeOwned;

use super::Form;
use crate::kit::Refusal;
use crate::kit::request_memory::{collect, take};
use sandkeep_core::limits::CONNECT_MESSAGE_MAX_BYTES;

/// Flags and length.
const HEAD_LEN: usize = 5;
const COMPRESSED: u8 = 1;

/// The message of a unary call.
pub struct Message<T>(pub T);

/// The message of a call that is answered with a stream.
pub struct StreamMessage<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Message<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        let (head, body) = request.into_parts();
        check_head(&head.headers, Form::Unary)?;
        let compression = compression(&head.headers, header::CONTENT_ENCODING.as_str())?;
        let bytes = collect(body, CONNECT_MESSAGE_MAX_BYTES, too_large).await?;
        parse(&compression.undo(bytes)?).map(Self)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for StreamMessage<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        let (head, body) = request.into_parts();
        check_head(&head.headers, Form::Stream)?;
        let compression = compression(&head.headers, "connect-content-encoding")?;
        let bytes = collect(body, CONNECT_MESSAGE_MAX_BYTES + HEAD_LEN, too_large).await?;
        parse(&unframed(bytes, compression)?).map(Self)
    }
}

fn wrong(field: &str, problem: impl Into<String>) -> Refusal {
    Refusal::BodyMalformed { field: Some(field.to_owned()), problem: problem.into() }
}

fn check_head(headers: &HeaderMap, form: Form) -> Result<(), Refusal> {
    let given = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes());
    let given = String::from_utf8_lossy(given.unwrap_or_default()).into_owned();
    let essence = given.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case(form.media_type()) {
        return Err(Refusal::NotJson { given });
    }
    match headers.get("connect-protocol-version") {
        Some(version) if version != "1" => {
            Err(wrong("Connect-Protocol-Version", "only 1 is known"))
        }
        Some(_) | None => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Identity,
    Gzip,
}

fn compression(headers: &HeaderMap, name: &str) -> Result<Compression, Refusal> {
    match headers.get(name).map(|value| value.as_bytes()) {
        None | Some(b"" | b"identity") => Ok(Compression::Identity),
        Some(b"gzip") => Ok(Compression::Gzip),
        Some(_) => Err(wrong(name, "only gzip and identity are supported")),
    }
}

impl Compression {
    fn undo(self, bytes: Bytes) -> Result<Bytes, Refusal> {
        match self {
            Self::Identity => Ok(bytes),
            // An empty body has no header of gzip's either.
            Self::Gzip if bytes.is_empty() => Ok(bytes),
            Self::Gzip => {
                let mut plain = Vec::new();
                let bounded = CONNECT_MESSAGE_MAX_BYTES as u64 + 1;
                let read = GzDecoder::new(&*bytes).take(bounded).read_to_end(&mut plain);
                read.map_err(|error| Refusal::BodyBroken { problem: error.to_string() })?;
                if plain.len() > CONNECT_MESSAGE_MAX_BYTES {
                    return Err(too_large());
                }
                take(plain.len())?;
                Ok(plain.into())
            }
        }
    }
}

fn too_large() -> Refusal {
    Refusal::MessageTooLarge
}

/// The message in the one frame of a request.
fn unframed(bytes: Bytes, compression: Compression) -> Result<Bytes, Refusal> {
    let malformed =
        |problem: &str| Refusal::BodyMalformed { field: None, problem: problem.to_owned() };
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_LEN>() else {
        return Err(malformed("the request has no whole frame"));
    };
    let [flags, length @ ..] = *head;
    if flags & !COMPRESSED != 0 {
        return Err(malformed("the first frame is no message"));
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > CONNECT_MESSAGE_MAX_BYTES {
        return Err(too_large());
    }
    match rest.len().cmp(&length) {
        std::cmp::Ordering::Less => return Err(malformed("the frame is cut off")),
        std::cmp::Ordering::Greater => return Err(malformed("more than one message was sent")),
        std::cmp::Ordering::Equal => {}
    }
    let payload = bytes.slice(HEAD_LEN..);
    match (flags & COMPRESSED != 0, compression) {
        (false, _) => Ok(payload),
        (true, Compression::Gzip) => compression.undo(payload),
        (true, Compression::Identity) => {
            Err(malformed("the frame is compressed, and no header says how"))
        }
    }
}

/// No bytes are a message of defaults.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let bytes = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    // Serde would also take an array, with the fields in the order of our source.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        let problem = "expected a JSON object".to_owned();
        return Err(Refusal::BodyMalformed { field: None, problem });
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let message = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = Some(error.path().to_string()).filter(|field| field != ".");
        Refusal::BodyMalformed { field, problem: error.into_inner().to_string() }
    })?;
    let malformed = |error: serde_json::Error| Refusal::BodyMalformed {
        field: None,
        problem: error.to_string(),
    };
    json.end().map_err(malformed)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use std::io::Write;

    use flate2::{Compression as Level, write::GzEncoder};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
        encoder.write_all(bytes).expect("memory takes all");
        encoder.finish().expect("memory takes all")
    }

    fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short");
        [&[flags][..], &length.to_be_bytes(), payload].concat()
    }

    async fn unary(headers: &[(&str, &str)], body: Vec<u8>) -> Result<Value, Refusal> {
        let request = request("application/json", headers, body);
        Message::from_request(request, &()).await.map(|Message(value)| value)
    }

    async fn stream(headers: &[(&str, &str)], body: Vec<u8>) -> Result<Value, Refusal> {
        let request = request("application/connect+json", headers, body);
        StreamMessage::from_request(request, &()).await.map(|StreamMessage(value)| value)
    }

    fn request(media: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Request {
        let mut request = Request::builder().method("POST").header("content-type", media);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::from(body)).expect("a request")
    }

    #[tokio::test]
    async fn a_message_is_the_same_plain_and_compressed() {
        let (plain, expected) = (br#"{"A":1}"#, json!({ "A": 1 }));
        let packed = gzip(plain);
        assert_eq!(unary(&[], plain.to_vec()).await.expect("plain"), expected);
        let encoded = [("content-encoding", "gzip")];
        assert_eq!(unary(&encoded, packed.clone()).await.expect("packed"), expected);
        assert_eq!(stream(&[], frame(0, plain)).await.expect("plain"), expected);
        let encoded = [("connect-content-encoding", "gzip")];
        assert_eq!(stream(&encoded, frame(1, &packed)).await.expect("packed"), expected);
        assert_eq!(stream(&encoded, frame(0, plain)).await.expect("not this one"), expected);
        assert_eq!(unary(&[], Vec::new()).await.expect("no bytes"), json!({}));
    }

    #[tokio::test]
    async fn what_the_protocol_does_not_allow_is_refused() {
        let version = [("connect-protocol-version", "2")];
        assert!(matches!(
            unary(&version, b"{}".to_vec()).await,
            Err(Refusal::BodyMalformed { .. })
        ));
        let brotli = [("content-encoding", "br")];
        assert!(matches!(unary(&brotli, b"{}".to_vec()).await, Err(Refusal::BodyMalformed { .. })));
        for body in [
            Vec::new(),
            vec![0, 0, 0],
            frame(1, b"{}"),
            frame(2, b"{}"),
            frame(0, b"[]"),
            frame(0, b"{} {}"),
            [frame(0, b"{}"), frame(0, b"{}")].concat(),
            frame(0, b"{}")[..6].to_vec(),
        ] {
            let refused = stream(&[], body.clone()).await;
            assert!(matches!(refused, Err(Refusal::BodyMalformed { .. })), "{body:?}: {refused:?}");
        }
        let request = request("application/proto", &[], Vec::new());
        let refused = Message::<Value>::from_request(request, &()).await;
        assert!(matches!(refused, Err(Refusal::NotJson { .. })));
    }

    #[tokio::test]
    async fn a_message_of_more_than_16_mib_is_refused_however_it_comes() {
        let text = |bytes: usize| format!("{{\"A\":\"{}\"}}", "x".repeat(bytes)).into_bytes();
        let largest = text(CONNECT_MESSAGE_MAX_BYTES - 8);
        assert_eq!(largest.len(), CONNECT_MESSAGE_MAX_BYTES);
        assert!(unary(&[], largest.clone()).await.is_ok());
        assert!(stream(&[], frame(0, &largest)).await.is_ok());
        let larger = text(CONNECT_MESSAGE_MAX_BYTES - 7);
        let encoded = [("content-encoding", "gzip")];
        for refused in [
            unary(&[], larger.clone()).await,
            unary(&encoded, gzip(&larger)).await,
            stream(&[], frame(0, &larger)).await,
            stream(&[], vec![0, 0xff, 0xff, 0xff, 0xff]).await,
        ] {
            assert!(matches!(refused, Err(Refusal::MessageTooLarge)));
        }
    }

    proptest! {
        /// Any bytes get an answer, and none cause a panic.
        #[test]
        fn garbage_is_refused_or_is_a_message(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let bytes = Bytes::from(bytes);
            for compression in [Compression::Identity, Compression::Gzip] {
                if let Ok(message) = unframed(bytes.clone(), compression) {
                    let _ = parse::<Value>(&message);
                }
                let _ = compression.undo(bytes.clone()).map(|plain| parse::<Value>(&plain));
            }
        }
    }
}
