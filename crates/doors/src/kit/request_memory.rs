//! What a request holds in memory counts to its caller, until its answer is sent: what is on its way to the client, its
//! body, as far as a handler keeps it, and an answer that is long. Without that, a thousand clients that send slowly, or
//! do not read, would take all memory of the daemon with requests each of which is within its bounds.
//!
//! ```text
//! reception   takes a share for the request           429 if its user or organization has too many
//! handler     reads the body: takes what arrives      429, and the rest of the body is not read
//! answer      takes its size, if it is long           429 for a GET, which can be repeated
//! client      has read the answer: all is given back
//! ```
//!
//! Readers of bodies find the reservation of their request as a task-local value. Bodies that are passed on piece by
//! piece take nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{Method, Version};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};

use super::Refusal;
use sandkeep_broker::{Broker, error::Error};
use sandkeep_core::Principal;
use sandkeep_core::ledger::{Over, Reservation};
use sandkeep_core::limits::{
    BODY_READ, REQUEST_ANSWER_FREE_BYTES, REQUEST_BYTES, REQUEST_WINDOW_BYTES,
};

tokio::task_local! {
    static OF_REQUEST: Arc<Held>;
}

/// The memory of one request, given back when it is dropped.
pub struct RequestMemory {
    held: Arc<Held>,
    method: Method,
}

struct Held {
    space: Reservation,
    /// How much of it is for a body that is still to come.
    window: AtomicU64,
}

fn refused(over: Over) -> Refusal {
    Refusal::Broker(Error::from(over))
}

impl RequestMemory {
    pub fn take(broker: &Broker, who: &Principal, request: &Request) -> Result<Self, Refusal> {
        let space = broker.request_memory(who);
        let waits = request.version() == Version::HTTP_2 && !request.body().is_end_stream();
        let window = if waits { u64::from(REQUEST_WINDOW_BYTES) } else { 0 };
        space.take(REQUEST_BYTES + window).map_err(refused)?;
        let held = Held { space, window: AtomicU64::new(window) };
        Ok(Self { held: Arc::new(held), method: request.method().clone() })
    }

    /// Runs the handler, whose body counts.
    pub async fn during<T>(&self, handler: impl Future<Output = T>) -> T {
        OF_REQUEST.scope(Arc::clone(&self.held), handler).await
    }

    /// The answer, which holds all of it until it is sent.
    pub fn until_sent(self, answer: Response) -> Result<Response, Refusal> {
        let long = answer.body().size_hint().exact().filter(|n| *n > REQUEST_ANSWER_FREE_BYTES);
        if let Some(bytes) = long {
            match self.held.space.take(bytes) {
                Ok(()) => {}
                Err(over) if self.method == Method::GET => return Err(refused(over)),
                // It has had its effect, so its client has to know.
                Err(_) => self.held.space.count(bytes),
            }
        }
        let held = self.held;
        Ok(answer.map(|body| Body::new(Counted { body, held })))
    }
}

/// Takes memory of the request that is being answered. Without one, as in tests of readers, nothing counts.
pub fn take(bytes: usize) -> Result<(), Refusal> {
    let taken = OF_REQUEST.try_with(|held| held.space.take(bytes as u64));
    taken.unwrap_or(Ok(())).map_err(refused)
}

/// Gives back what was taken.
pub fn give(bytes: usize) {
    // Whoever has none took none.
    let _ = OF_REQUEST.try_with(|held| held.space.give(bytes as u64));
}

/// Nothing more of the body comes.
pub fn is_read() {
    let _ = OF_REQUEST.try_with(|held| held.space.give(held.window.swap(0, Relaxed)));
}

/// All of a body: bounded in size and time, and counted while it arrives.
pub async fn collect(body: Body, max: usize, too_large: fn() -> Refusal) -> Result<Bytes, Refusal> {
    let collected = tokio::time::timeout(BODY_READ, collected(body, max, too_large)).await;
    collected.unwrap_or(Err(Refusal::BodyTooSlow))
}

async fn collected(
    mut body: Body,
    max: usize,
    too_large: fn() -> Refusal,
) -> Result<Bytes, Refusal> {
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::BodyBroken { problem: error.to_string() })?;
        let Ok(bytes) = frame.into_data() else { continue };
        if first.len() + rest.len() + bytes.len() > max {
            return Err(too_large());
        }
        take(bytes.len())?;
        // Most bodies come in one piece, which needs no copy.
        if first.is_empty() && rest.is_empty() {
            first = bytes;
        } else {
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&bytes);
        }
    }
    is_read();
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// The body of an answer. What the connection still has to send holds the memory, too.
struct Counted {
    body: Body,
    held: Arc<Held>,
}

/// A part of an answer.
struct Part {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let held = &self.held;
        let counted = |bytes: Bytes| {
            if bytes.is_empty() {
                bytes
            } else {
                Bytes::from_owner(Part { bytes, _held: Arc::clone(held) })
            }
        };
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(counted))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::IntoResponse;
    use futures_util::stream;
    use sandkeep_core::Owner;
    use sandkeep_core::ledger::{Ledger, Shares};

    use super::*;

    const MIB: usize = sandkeep_core::limits::MIB as usize;

    fn memory(ledger: &Arc<Ledger>, method: Method) -> RequestMemory {
        let held = Held { space: ledger.open(&Owner::local()), window: AtomicU64::new(0) };
        RequestMemory { held: Arc::new(held), method }
    }

    fn ledger() -> Arc<Ledger> {
        Ledger::new("request_mb", Shares { organization_mb: None, user_mb: Some(1) }, |_| Ok(()))
    }

    fn has_room(ledger: &Arc<Ledger>, bytes: usize) -> bool {
        ledger.open(&Owner::local()).take(bytes as u64).is_ok()
    }

    fn too_large() -> Refusal {
        Refusal::BodyTooLarge
    }

    #[tokio::test]
    async fn a_body_counts_while_it_arrives_and_until_its_answer_is_sent() {
        let ledger = ledger();
        let half = Bytes::from(vec![b'x'; MIB / 2]);
        let one = memory(&ledger, Method::POST);
        let body = Body::from(half.clone());
        let read = one.during(collect(body, MIB, too_large)).await.expect("there is room");
        assert_eq!(read, half);
        // Two halves of another, the second of which has no room.
        let other = memory(&ledger, Method::POST);
        let pieces = [half.clone(), half].map(Ok::<_, Infallible>);
        let body = Body::from_stream(stream::iter(pieces));
        let refused = other.during(collect(body, MIB, too_large)).await;
        assert!(
            matches!(refused, Err(Refusal::Broker(Error::QuotaExceeded { .. }))),
            "{refused:?}"
        );
        drop(other);
        let answer = one.until_sent("done".into_response()).expect("short");
        assert!(!has_room(&ledger, MIB), "it is not sent");
        drop(answer);
        assert!(has_room(&ledger, MIB));
    }

    #[tokio::test]
    async fn what_can_wait_on_a_connection_counts_until_the_body_is_read() {
        let ledger = ledger();
        let one = memory(&ledger, Method::POST);
        one.held.space.take(MIB as u64).expect("all of it");
        one.held.window.store(MIB as u64, Relaxed);
        one.during(collect(Body::empty(), 0, too_large)).await.expect("nothing");
        assert!(has_room(&ledger, MIB), "it is given back before the answer");
        one.during(async { is_read() }).await;
        assert!(has_room(&ledger, MIB), "once");
    }

    #[tokio::test]
    async fn a_long_answer_counts_until_its_last_byte_has_left() {
        let ledger = ledger();
        let answer = || vec![b'x'; MIB / 2 + 1].into_response();
        let sent = memory(&ledger, Method::GET).until_sent(answer()).expect("there is room");
        let second = memory(&ledger, Method::GET).until_sent(answer());
        assert!(second.is_err(), "it can be asked for again");
        let third = memory(&ledger, Method::POST).until_sent(answer());
        drop(third.expect("what was done is said"));
        let bytes = sent.into_body().collect().await.expect("whole").to_bytes();
        assert_eq!(bytes.len(), MIB / 2 + 1);
        assert!(!has_room(&ledger, MIB), "the connection still has it");
        drop(bytes);
        assert!(has_room(&ledger, MIB));
    }

    #[tokio::test]
    async fn a_body_in_many_pieces_is_the_same_and_not_larger_than_it_may_be() {
        let pieces = || ["one", "", "two", "three"].map(Ok::<_, Infallible>);
        let body = || Body::from_stream(stream::iter(pieces()));
        assert_eq!(collect(body(), 11, too_large).await.expect("whole"), "onetwothree");
        assert!(matches!(collect(body(), 10, too_large).await, Err(Refusal::BodyTooLarge)));
        assert_eq!(collect(Body::empty(), 0, too_large).await.expect("nothing"), "");
    }
}
