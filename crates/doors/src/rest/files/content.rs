//! Files and archives as response bodies. They are pulled: a slow client slows the reading inside, and a disconnect
//! ends it. An error in the middle breaks the body off, so that the client cannot mistake it for complete.

use std::io;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use toolbox::{ByteRange, Packing, Reading};

use crate::kit::Refusal;
use sandkeep_broker::FileStream;
use sandkeep_core::with_causes;

const ARCHIVE_BYTES: HeaderName = HeaderName::from_static("x-sandkeep-archive-bytes");
const ARCHIVE_OF: HeaderName = HeaderName::from_static("x-sandkeep-archive-of");

/// The requested range. An invalid range, or several ranges, are ignored: the whole content is sent. Conditional ranges
/// are ignored too, because there are no validators to compare.
pub fn range(headers: &HeaderMap) -> Option<ByteRange> {
    if headers.contains_key(header::IF_RANGE) {
        return None;
    }
    let text = headers.get(header::RANGE)?.to_str().ok()?.trim().strip_prefix("bytes=")?;
    let (first, last) = text.split_once('-')?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    match (first.trim(), last.trim()) {
        ("", last) => number(last).map(|bytes| ByteRange::Last { bytes }),
        (first, "") => number(first).map(|first| ByteRange::From { first, last: None }),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(ByteRange::From { first, last: Some(last) })
        }
    }
}

pub fn answer(reading: Reading, stream: FileStream, range: Option<ByteRange>) -> Response {
    let (entry, start, len) = match reading {
        Reading::Bytes { entry, start, len } => (entry, start, len),
        Reading::Unsatisfiable { entry } => {
            let mut refused = Refusal::RangeBeyondEnd { size: entry.size }.into_response();
            insert(&mut refused, header::CONTENT_RANGE, &format!("bytes */{}", entry.size));
            return refused;
        }
    };
    let mut answer = data(stream, "application/octet-stream");
    insert(&mut answer, header::CONTENT_LENGTH, &len.to_string());
    insert(&mut answer, header::ACCEPT_RANGES, "bytes");
    if range.is_some() {
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        // A satisfiable range has at least one byte.
        let last = start.saturating_add(len).saturating_sub(1);
        let range = format!("bytes {start}-{last}/{}", entry.size);
        insert(&mut answer, header::CONTENT_RANGE, &range);
    }
    answer
}

pub fn archive(packing: Packing, stream: FileStream) -> Response {
    let mut answer = data(stream, "application/x-tar");
    let of = if packing.directory { "directory" } else { "file" };
    insert(&mut answer, ARCHIVE_OF, of);
    insert(&mut answer, ARCHIVE_BYTES, &packing.bytes.to_string());
    answer
}

/// Sandbox data on the API's own origin: no browser may render it as a page.
fn data(stream: FileStream, media_type: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "sandbox"),
        (header::CONTENT_DISPOSITION, "attachment"),
    ];
    let body = Body::from_stream(stream::unfold(Some(stream), next));
    (headers, body).into_response()
}

async fn next(stream: Option<FileStream>) -> Option<(io::Result<Bytes>, Option<FileStream>)> {
    let mut stream = stream?;
    match stream.next().await {
        Ok(Some(bytes)) => Some((Ok(bytes), Some(stream))),
        Ok(None) => None,
        Err(error) => {
            tracing::debug!("a file breaks off: {}", with_causes(&error));
            Some((Err(io::Error::other(error)), None))
        }
    }
}

fn insert(response: &mut Response, name: HeaderName, value: &str) {
    let value = HeaderValue::from_str(value).expect("numbers and words are header values");
    response.headers_mut().insert(name, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Option<ByteRange> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, text.parse().expect("a value"));
        range(&headers)
    }

    #[test]
    fn one_range_of_bytes_is_understood_and_nothing_else() {
        let from = |first, last| Some(ByteRange::From { first, last });
        assert_eq!(asked("bytes=0-0"), from(0, Some(0)));
        assert_eq!(asked("bytes=5-"), from(5, None));
        assert_eq!(asked("bytes=-5"), Some(ByteRange::Last { bytes: 5 }));
        for text in [
            "bytes=",
            "bytes=-",
            "bytes=5-4",
            "bytes=a-b",
            "bytes=0-1,3-4",
            "items=0-1",
            "bytes=+1-2",
        ] {
            assert_eq!(asked(text), None, "{text}");
        }
    }
}
