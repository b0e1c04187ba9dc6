//! Reading the messages of a call, each bounded in size and in the time until it arrives.

use std::marker::PhantomData;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use prost::Message;

use super::{HEAD_LEN, MEDIA_TYPE};
use crate::kit::Refusal;
use crate::kit::request_memory::{give, is_read, take};
use sandkeep_core::limits::{BODY_READ, GRPC_MESSAGE_MAX_BYTES};

/// The one message of a call.
pub struct Unary<T>(pub T);

/// The messages of a call, as they come.
pub struct Messages<T> {
    body: Body,
    read: BytesMut,
    /// The size of the last message, which counts until the next one is asked for.
    last: usize,
    of: PhantomData<fn() -> T>,
}

impl<T: Message + Default, S: Send + Sync> FromRequest<S> for Unary<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let mut messages = Messages::from_request(request, state).await?;
        let message = messages.next().await?.ok_or_else(|| malformed("no message was sent"))?;
        match messages.next().await? {
            None => Ok(Self(message)),
            Some(_) => Err(malformed("more than one message was sent")),
        }
    }
}

impl<T, S: Send + Sync> FromRequest<S> for Messages<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        let (head, body) = request.into_parts();
        check_media(&head.headers)?;
        Ok(Self { body, read: BytesMut::new(), last: 0, of: PhantomData })
    }
}

impl<T: Message + Default> Messages<T> {
    /// The next message; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<T>, Refusal> {
        let last = std::mem::take(&mut self.last);
        loop {
            if let Some(frame) = take_frame(&mut self.read)? {
                give(last);
                self.last = HEAD_LEN + frame.len();
                let message = T::decode(frame);
                return message.map(Some).map_err(|wrong| malformed(&wrong.to_string()));
            }
            let Some(bytes) = self.more().await? else {
                return if self.read.is_empty() {
                    Ok(None)
                } else {
                    Err(malformed("the last message is cut off"))
                };
            };
            take(bytes.len())?;
            self.read.extend_from_slice(&bytes);
        }
    }

    async fn more(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let frame = tokio::time::timeout(BODY_READ, self.body.frame()).await;
            match frame.map_err(|_elapsed| Refusal::BodyTooSlow)? {
                None => {
                    is_read();
                    return Ok(None);
                }
                Some(Err(error)) => return Err(Refusal::BodyBroken { problem: error.to_string() }),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

fn malformed(problem: &str) -> Refusal {
    Refusal::BodyMalformed { field: None, problem: problem.to_owned() }
}

/// `application/grpc`, perhaps with the name of the only format that there is here.
fn check_media(headers: &HeaderMap) -> Result<(), Refusal> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = given.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    match essence.strip_prefix(MEDIA_TYPE) {
        Some("" | "+proto") => Ok(()),
        Some(_) | None => Err(Refusal::BodyMalformed {
            field: Some("content-type".to_owned()),
            problem: format!("expected {MEDIA_TYPE}"),
        }),
    }
}

/// The payload of the first frame, once all of it is there.
fn take_frame(read: &mut BytesMut) -> Result<Option<Bytes>, Refusal> {
    let Some(&[flags, a, b, c, d]) = read.first_chunk::<HEAD_LEN>() else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if flags != 0 {
        return Err(malformed("compressed messages are not supported: send them as identity"));
    }
    if length > GRPC_MESSAGE_MAX_BYTES {
        return Err(malformed(&format!("a message is at most {GRPC_MESSAGE_MAX_BYTES} bytes")));
    }
    if read.len() < HEAD_LEN + length {
        return Ok(None);
    }
    read.advance(HEAD_LEN);
    Ok(Some(read.split_to(length).freeze()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short");
        [&[flags][..], &length.to_be_bytes(), payload].concat()
    }

    fn request(body: Vec<u8>) -> Request {
        let request = Request::post("/").header("content-type", "application/grpc");
        request.body(Body::from(body)).expect("a request")
    }

    async fn all(body: Vec<u8>) -> Result<Vec<String>, Refusal> {
        let mut messages = Messages::<String>::from_request(request(body), &()).await?;
        let mut found = Vec::new();
        while let Some(message) = messages.next().await? {
            found.push(message);
        }
        Ok(found)
    }

    #[tokio::test]
    async fn messages_come_one_after_the_other() {
        let texts = ["one", "", "three"].map(str::to_owned);
        let frames: Vec<u8> = texts.iter().flat_map(|t| frame(0, &t.encode_to_vec())).collect();
        assert_eq!(all(frames.clone()).await.expect("three"), texts);
        assert_eq!(all(Vec::new()).await.expect("none"), Vec::<String>::new());
        let unary = Unary::<String>::from_request(request(frames), &()).await;
        assert!(matches!(unary, Err(Refusal::BodyMalformed { .. })), "three are not one");
        let unary = Unary::<String>::from_request(request(Vec::new()), &()).await;
        assert!(matches!(unary, Err(Refusal::BodyMalformed { .. })), "none is not one");
    }

    #[tokio::test]
    async fn what_the_protocol_does_not_allow_is_refused() {
        let huge = u32::try_from(GRPC_MESSAGE_MAX_BYTES + 1).expect("it fits");
        let huge = [&[0][..], &huge.to_be_bytes()].concat();
        for wrong in
            [vec![0, 0], frame(0, b"xx")[..6].to_vec(), frame(1, b""), frame(0, b"\xff"), huge]
        {
            let refused = all(wrong.clone()).await;
            assert!(
                matches!(refused, Err(Refusal::BodyMalformed { .. })),
                "{wrong:?}: {refused:?}"
            );
        }
        let plain = Request::post("/").body(Body::empty()).expect("a request");
        assert!(Messages::<String>::from_request(plain, &()).await.is_err());
    }

    proptest! {
        /// Any bytes get an answer, and none cause a panic.
        #[test]
        fn garbage_is_refused_or_is_messages(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut read = BytesMut::from(&bytes[..]);
            while let Ok(Some(frame)) = take_frame(&mut read) {
                let _ = String::decode(frame);
            }
        }
    }
}
