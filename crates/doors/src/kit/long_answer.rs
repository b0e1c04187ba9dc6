//! A JSON answer with long texts. JSON may encode one byte as six, so such an answer is encoded piece by piece as the
//! client reads it. Buffered data counts against the caller's quota, and is freed if the client stops reading for a
//! while.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use axum::Json;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;

use sandkeep_core::ledger::Reservation;
use sandkeep_core::limits::{ANSWER_PIECE_BYTES, ANSWER_SILENCE_MAX};

/// Answers with an object and these texts as additional fields; `space` is the memory reserved for them. `whole` is the
/// same object with the texts included, for the many answers that are short.
pub fn long_answer<T: Serialize>(
    mut object: T,
    texts: Vec<(&'static str, String)>,
    whole: impl FnOnce(&mut T, Vec<(&'static str, String)>),
    space: Reservation,
) -> Response {
    let bytes: usize = texts.iter().map(|(_, text)| text.len()).sum();
    if bytes <= ANSWER_PIECE_BYTES {
        whole(&mut object, texts);
        return Json(object).into_response();
    }
    let mut head = encoded(&object);
    // The texts go before the closing brace.
    head.pop();
    let rest =
        UnsentPart { head: head.into(), texts: texts.into(), at: None, _space: Box::new(space) };
    sent(rest)
}

/// Answers with an object that takes much memory; `space` is the memory reserved for it.
pub fn heavy_answer<T: Serialize>(object: &T, space: impl Send + 'static) -> Response {
    let head = Bytes::from(encoded(object));
    sent(UnsentPart { head, texts: VecDeque::new(), at: None, _space: Box::new(space) })
}

fn encoded<T: Serialize>(object: &T) -> String {
    serde_json::to_string(object).expect("an answer holds strings and numbers")
}

fn sent(rest: UnsentPart) -> Response {
    let held = Arc::new(SharedPieces::new(rest));
    tokio::spawn(forget_unread(Arc::downgrade(&held)));
    let body = stream::unfold(held, |held| async move { Some((held.piece()?, held)) });
    ([(CONTENT_TYPE, "application/json")], Body::from_stream(body)).into_response()
}

struct SharedPieces(Mutex<ReadState>);

struct ReadState {
    /// `None` once the answer was read completely, or abandoned.
    rest: Option<UnsentPart>,
    /// How many pieces were read.
    taken: u64,
}

struct UnsentPart {
    /// The part of the object that was not sent yet.
    head: Bytes,
    texts: VecDeque<(&'static str, String)>,
    /// The position in the first text, if it was started.
    at: Option<usize>,
    _space: Box<dyn Send>,
}

impl SharedPieces {
    fn new(rest: UnsentPart) -> Self {
        Self(Mutex::new(ReadState { rest: Some(rest), taken: 0 }))
    }

    fn state(&self) -> MutexGuard<'_, ReadState> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees the answer if no more than `before` was read; otherwise returns how much was.
    fn forget_unless_read(&self, before: Option<u64>) -> Option<u64> {
        let mut state = self.state();
        if before == Some(state.taken) {
            state.rest = None;
            return None;
        }
        Some(state.taken)
    }

    fn piece(&self) -> Option<io::Result<Bytes>> {
        let mut state = self.state();
        state.taken += 1;
        match &mut state.rest {
            None => Some(Err(io::Error::other("the answer was not read in time"))),
            Some(rest) => rest.next().map(Ok),
        }
    }
}

impl UnsentPart {
    fn next(&mut self) -> Option<Bytes> {
        if !self.head.is_empty() {
            return Some(self.head.split_to(self.head.len().min(ANSWER_PIECE_BYTES)));
        }
        let Some((name, text)) = self.texts.front() else {
            // The closing brace, once.
            return self.at.take().map(|_| Bytes::from_static(b"}"));
        };
        let (start, mut piece) = match self.at {
            Some(at) if at > 0 => (at, String::new()),
            Some(_) | None => (0, format!(",\"{name}\":\"")),
        };
        let end = text.floor_char_boundary((start + ANSWER_PIECE_BYTES).min(text.len()));
        let encoded = serde_json::to_string(&text[start..end]).expect("text is JSON");
        piece.push_str(&encoded[1..encoded.len() - 1]);
        if end < text.len() {
            self.at = Some(end);
        } else {
            piece.push('"');
            self.at = Some(0);
            self.texts.pop_front();
        }
        Some(piece.into())
    }
}

/// Frees an answer that was not read for a while.
async fn forget_unread(held: Weak<SharedPieces>) {
    let mut before = None;
    while let Some(taken) = held.upgrade().and_then(|held| held.forget_unless_read(before)) {
        before = Some(taken);
        tokio::time::sleep(ANSWER_SILENCE_MAX).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use sandkeep_core::Owner;
    use sandkeep_core::ledger::{Ledger, Shares};
    use serde_json::{Value, json};

    const MIB: u64 = sandkeep_core::limits::MIB;

    fn answer(texts: Vec<(&'static str, String)>, space: Reservation) -> Response {
        let whole = |object: &mut Value, texts: Vec<(&'static str, String)>| {
            texts.into_iter().for_each(|(name, text)| object[name] = json!(text));
        };
        long_answer(json!({ "a": 1 }), texts, whole, space)
    }

    fn space() -> (Arc<Ledger>, Reservation) {
        let shares = Shares { organization_mb: Some(1), user_mb: None };
        let ledger = Ledger::new("answers", shares, |_| Ok(()));
        let space = ledger.open(&Owner::local());
        space.take(MIB).expect("all of it");
        (ledger, space)
    }

    #[tokio::test]
    async fn an_answer_is_the_same_however_long_it_is() {
        for length in [0, 10, ANSWER_PIECE_BYTES, 3 * ANSWER_PIECE_BYTES + 1] {
            let texts = ["\u{1}é\"\\", "x"].map(|text| text.repeat(length));
            let [one, two] = texts.clone();
            let response = answer(vec![("one", one), ("two", two)], space().1);
            let body = response.into_body().collect().await.expect("whole").to_bytes();
            let read: Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(read, json!({ "a": 1, "one": texts[0], "two": texts[1] }));
        }
    }

    #[test]
    fn what_nobody_reads_is_freed_and_given_back() {
        let (ledger, space) = space();
        let other = ledger.open(&Owner::local());
        let texts = [("one", "\u{1}".repeat(ANSWER_PIECE_BYTES * 3))].into();
        let rest =
            UnsentPart { head: Bytes::from_static(b"{"), texts, at: None, _space: Box::new(space) };
        let held = SharedPieces::new(rest);
        let first = held.forget_unless_read(None);
        held.piece().expect("a first piece").expect("whole");
        let second = held.forget_unless_read(first);
        assert_eq!(second, Some(1), "somebody reads");
        assert!(other.take(1).is_err(), "the rest waits to be read");
        assert_eq!(held.forget_unless_read(second), None);
        other.take(1).expect("it was given back");
        assert!(held.piece().expect("more to say").is_err(), "it is not taken for whole");
    }
}
