//! Streams of items as bytes: one encoder each for NDJSON, Server-Sent Events and Connect.

use std::fmt;
use std::io::Write;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use serde::Serialize;

/// The format of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Ndjson,
    Sse,
    /// Plain bytes without frames.
    Raw,
}

impl Form {
    /// The first format in `Accept` that we support; `None` if none is.
    pub fn accepted(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut ranges = values.flat_map(|value| value.split(','));
        ranges.find_map(|range| {
            let range = range.split(';').next()?.trim();
            [Self::Ndjson, Self::Sse, Self::Raw]
                .into_iter()
                .find(|form| range.eq_ignore_ascii_case(form.media_type()))
        })
    }

    /// The format of a live answer; `None` if only the result is wanted. Several output streams at once cannot be sent
    /// as plain bytes.
    pub fn live(stream: bool, headers: &HeaderMap) -> Option<Self> {
        match Self::accepted(headers) {
            form @ Some(Self::Ndjson | Self::Sse) => form,
            Some(Self::Raw) | None => stream.then_some(Self::Ndjson),
        }
    }

    pub fn media_type(self) -> &'static str {
        match self {
            Self::Ndjson => "application/x-ndjson",
            Self::Sse => "text/event-stream",
            Self::Raw => "application/octet-stream",
        }
    }

    /// One item as a frame of this format. Only SSE carries the name, and `id`, from which a client that reconnects
    /// resumes.
    pub fn frame(
        self,
        name: &str,
        id: Option<fmt::Arguments<'_>>,
        item: &(impl Serialize + ?Sized),
    ) -> Bytes {
        match self {
            Self::Sse => sse(name, id, item),
            Self::Ndjson | Self::Raw => ndjson(item),
        }
    }

    /// The response whose body is this stream.
    pub fn response<E>(
        self,
        frames: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    ) -> Response
    where
        E: Into<axum::BoxError> + 'static,
    {
        let headers =
            [(header::CONTENT_TYPE, self.media_type()), (header::CACHE_CONTROL, "no-store")];
        (headers, Body::from_stream(frames)).into_response()
    }
}

/// One line of JSON.
pub fn ndjson(item: &(impl Serialize + ?Sized)) -> Bytes {
    let mut frame = Vec::new();
    write_json(&mut frame, item);
    frame.push(b'\n');
    frame.into()
}

/// One SSE event. Serialized JSON has no line breaks, so the data fits one line.
pub fn sse(name: &str, id: Option<fmt::Arguments<'_>>, item: &(impl Serialize + ?Sized)) -> Bytes {
    let mut frame = format!("event: {name}\n").into_bytes();
    if let Some(id) = id {
        writeln!(frame, "id: {id}").expect("memory takes all");
    }
    frame.extend_from_slice(b"data: ");
    write_json(&mut frame, item);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

/// The kind of an envelope in a Connect stream; the value is the envelope's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Envelope {
    Message = 0,
    /// The last envelope of a stream: how it ended, and its trailers.
    End = 2,
}

/// One envelope of the Connect protocol: flags, the length as four bytes (big-endian), JSON.
pub fn connect(envelope: Envelope, item: &(impl Serialize + ?Sized)) -> Bytes {
    const HEAD_LEN: usize = 5;
    let mut frame = vec![envelope as u8, 0, 0, 0, 0];
    write_json(&mut frame, item);
    let length = u32::try_from(frame.len() - HEAD_LEN).expect("items are far below 4 GiB");
    frame[1..HEAD_LEN].copy_from_slice(&length.to_be_bytes());
    frame.into()
}

fn write_json(frame: &mut Vec<u8>, item: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(frame, item).expect("items hold only strings, numbers and maps");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use sandkeep_core::api::{ExecEvent, OutputStream};

    fn output(data: Vec<u8>) -> ExecEvent {
        ExecEvent::Output { stream: OutputStream::Stdout, offset: 3, data: data.into() }
    }

    /// The envelopes of a Connect stream, decoded as the protocol specifies.
    fn envelopes(mut stream: &[u8]) -> Vec<(u8, &[u8])> {
        let mut found = Vec::new();
        while let Some((head, rest)) = stream.split_first_chunk::<5>() {
            let [flags, length @ ..] = *head;
            let (payload, rest) = rest.split_at(u32::from_be_bytes(length) as usize);
            found.push((flags, payload));
            stream = rest;
        }
        assert!(stream.is_empty(), "half an envelope is left");
        found
    }

    #[test]
    fn frames_are_the_bytes_that_their_protocols_say() {
        let item = json!({ "a": "x\ny" });
        assert_eq!(ndjson(&item), "{\"a\":\"x\\ny\"}\n");
        assert_eq!(sse("said", None, &item), "event: said\ndata: {\"a\":\"x\\ny\"}\n\n");
        let (stdout, stderr) = (4, 0);
        let place = Some(format_args!("{stdout}-{stderr}"));
        assert_eq!(sse("said", place, &json!(1)), "event: said\nid: 4-0\ndata: 1\n\n");
        assert_eq!(connect(Envelope::Message, &json!({})), &b"\x00\x00\x00\x00\x02{}"[..]);
        let long = connect(Envelope::End, &"x".repeat(0x1_0203 - 2));
        assert_eq!(long[..6], *b"\x02\x00\x01\x02\x03\"");
    }

    proptest! {
        #[test]
        fn bytes_survive_every_encoding(chunks in prop::collection::vec(
            prop::collection::vec(any::<u8>(), 0..200), 1..5,
        )) {
            let events: Vec<ExecEvent> = chunks.into_iter().map(output).collect();
            let read = |json: &[u8]| serde_json::from_slice::<ExecEvent>(json).expect("an event");

            let lines: Vec<u8> = events.iter().flat_map(ndjson).collect();
            let lines: Vec<_> = lines.split_inclusive(|byte| *byte == b'\n').map(read).collect();
            prop_assert_eq!(&lines, &events);

            let told: Vec<u8> = events.iter().flat_map(|event| sse("stdout", None, event)).collect();
            let told = String::from_utf8(told).expect("JSON is text");
            let told: Vec<_> = told
                .split_terminator("\n\n")
                .map(|event| read(event.strip_prefix("event: stdout\ndata: ").expect("data").as_bytes()))
                .collect();
            prop_assert_eq!(&told, &events);

            let mut stream: Vec<u8> =
                events.iter().flat_map(|event| connect(Envelope::Message, event)).collect();
            stream.extend_from_slice(&connect(Envelope::End, &json!({})));
            let found = envelopes(&stream);
            let (end, messages) = found.split_last().expect("an end");
            prop_assert_eq!(*end, (2, &b"{}"[..]));
            let messages: Vec<_> = messages.iter().map(|(flags, json)| (*flags, read(json))).collect();
            let expected: Vec<_> = events.into_iter().map(|event| (0, event)).collect();
            prop_assert_eq!(messages, expected);
        }
    }
}
