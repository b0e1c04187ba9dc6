//! `x-correlation-id`: on every answer, the caller's own if it sent a usable one, else a new one; and on
//! every line that is logged for the request. Beside it, the request's place in a trace: a step of the caller's trace if
//! it sent a valid `traceparent`, else the first step of a new one; the answer has it in the same header. What a caller sends goes into logs and headers, so it is short
//! and visible ASCII, or it is replaced.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use super::trace::TraceParent;
use sandkeep_core::limits::CORRELATION_ID_MAX_BYTES;

pub const HEADER_NAME: &str = "x-correlation-id";
pub const HEADER: HeaderName = HeaderName::from_static(HEADER_NAME);

/// The correlation id of a request, an extension of it.
#[derive(Clone, Debug)]
pub struct CorrelationId(HeaderValue);

impl CorrelationId {
    pub fn text(&self) -> String {
        self.0.to_str().unwrap_or_default().to_owned()
    }
}

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The place of a request in a trace, an extension of it.
#[derive(Clone, Copy, Debug)]
pub struct Traced {
    /// Our own step.
    pub own: TraceParent,
    pub by: TracedBy,
}

/// Who began a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedBy {
    /// The caller, who sees our step in it.
    Caller,
    Us,
}

impl Traced {
    fn of(headers: &HeaderMap) -> Self {
        let mut sent = headers.get_all(TRACEPARENT).iter();
        // Two of them are none, as the standard says of all that is invalid.
        let only = sent.next().filter(|_| sent.next().is_none());
        let parsed = only.and_then(|value| value.to_str().ok()?.parse::<TraceParent>().ok());
        match parsed {
            Some(parent) => Self { own: parent.child(), by: TracedBy::Caller },
            None => Self { own: TraceParent::random(), by: TracedBy::Us },
        }
    }

    /// What a command is told of the trace that it is part of; nothing if its caller traces nothing.
    pub fn variable(&self) -> Option<(&'static str, String)> {
        (self.by == TracedBy::Caller).then(|| ("TRACEPARENT", self.own.to_string()))
    }
}

/// The outermost layer.
pub async fn correlate(mut request: Request, next: Next) -> Response {
    let id = match request.headers().get(HEADER) {
        Some(given) if is_usable(given) => given.clone(),
        Some(_) | None => mint(),
    };
    let traced = Traced::of(request.headers());
    let state = request.headers().get(TRACESTATE).cloned();
    let span = tracing::info_span!(
        "request",
        correlation_id = id.to_str().unwrap_or_default(),
        trace_id = %traced.own.trace,
        method = %request.method(),
        path = request.uri().path(),
    );
    // For a door that serves the request in another task.
    request.extensions_mut().insert(span.clone());
    request.extensions_mut().insert(CorrelationId(id.clone()));
    request.extensions_mut().insert(traced);
    let began = Instant::now();
    let answered = async {
        let response = next.run(request).await;
        tracing::debug!(status = response.status().as_u16(), elapsed = ?began.elapsed());
        response
    };
    let mut response = answered.instrument(span).await;
    let headers = response.headers_mut();
    headers.insert(HEADER, id);
    let own = HeaderValue::try_from(traced.own.to_string()).expect("digits and dashes");
    headers.insert(TRACEPARENT, own);
    if let (Some(state), TracedBy::Caller) = (state, traced.by) {
        headers.insert(TRACESTATE, state);
    }
    response
}

fn is_usable(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    (1..=CORRELATION_ID_MAX_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

/// Unique without asking the kernel for every request: a random part per process, and a counter.
fn mint() -> HeaderValue {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let process = PROCESS.get_or_init(|| {
        let mut bytes = [0u8; 8];
        getrandom::fill(&mut bytes).expect("the kernel's random source always answers once booted");
        u64::from_le_bytes(bytes)
    });
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    HeaderValue::try_from(format!("{process:016x}-{count}")).expect("digits and a dash")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_visible_ascii_is_taken_over() {
        let longest = "x".repeat(CORRELATION_ID_MAX_BYTES);
        for good in ["a", "4711", "req/1:2{3}", longest.as_str()] {
            assert!(is_usable(&HeaderValue::from_str(good).expect("a value")), "{good}");
        }
        let too_long = format!("{longest}x");
        for bad in ["", "a b", "a\tb", too_long.as_str()] {
            assert!(!is_usable(&HeaderValue::from_str(bad).expect("a value")), "{bad}");
        }
        assert!(!is_usable(&HeaderValue::from_bytes("é".as_bytes()).expect("a value")));
    }

    #[test]
    fn a_request_is_a_step_of_its_callers_trace_or_the_first_of_its_own() {
        const SENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let sent = |values: &[&'static str]| -> HeaderMap {
            values.iter().map(|value| (TRACEPARENT, HeaderValue::from_static(value))).collect()
        };
        let traced = Traced::of(&sent(&[SENT]));
        assert_eq!(traced.own.trace.to_string(), SENT[3..35]);
        assert_ne!(traced.own.to_string(), SENT);
        assert!(traced.variable().is_some_and(|(_, value)| value == traced.own.to_string()));
        for none in [&[][..], &["nonsense"], &[SENT, SENT]] {
            let traced = Traced::of(&sent(none));
            assert_ne!(traced.own.trace.to_string(), SENT[3..35], "{none:?}");
            assert_eq!(traced.variable(), None);
        }
    }

    #[test]
    fn no_two_minted_are_the_same_and_all_are_usable() {
        let (one, other) = (mint(), mint());
        assert_ne!(one, other);
        assert!(is_usable(&one) && is_usable(&other));
    }
}
