//! What is left of a request's body when the request is answered. Over HTTP/1.1 a connection whose request was not read to
//! its end is closed, and a client that sends its next request at that moment gets no answer to it. So what a handler
//! or the gate leaves is read away, within bounds. HTTP/2 has an end for each request, and needs none of this.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::{Version, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use sandkeep_core::limits::{UNREAD_MAX_BYTES, UNREAD_READ};

/// The body of a request, which is read away if it is dropped before its end.
pub struct Unread {
    inner: Option<Incoming>,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    ReadAway,
    Drop,
}

impl Unread {
    /// A client that waits to be told to go on has sent nothing that could be left.
    pub fn wrap(request: Request<Incoming>) -> Request<Self> {
        let waits = request.headers().contains_key(header::EXPECT);
        let fate =
            if request.version() < Version::HTTP_2 && !waits { Fate::ReadAway } else { Fate::Drop };
        request.map(|body| Self { inner: Some(body), fate })
    }
}

impl Body for Unread {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let frame = Pin::new(inner).poll_frame(context);
        if let Poll::Ready(None | Some(Err(_))) = frame {
            self.inner = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let Some(body) = self.inner.take() else { return };
        if self.fate == Fate::ReadAway && !body.is_end_stream() {
            tokio::spawn(read_away(body));
        }
    }
}

/// A client that sends more than the bounds finds its connection closed.
async fn read_away(mut body: Incoming) {
    let rest = async {
        let mut left = UNREAD_MAX_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(UNREAD_READ, rest).await;
}
