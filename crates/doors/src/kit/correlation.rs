//! `x-correlation-id`: on every answer, the caller's own if it sent a usable one, else a new one; and on
//! every line that is logged for the request. Beside it, the request's place in a trace: a step of the caller's trace
//! if it sent a valid `traceparent`, else the first step of a new one; the answer has it in the same header. The
//! caller's value goes into logs and headers, so it must be short and visible ASCII; otherwise it is replaced.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use sandkeep_core::TraceParent;
use sandkeep_core::limits::CORRELATION_ID_MAX_BYTES;
use sandkeep_traces::{Step, TraceContext, TracedBy, Value};

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

/// What a caller says of its trace. Two headers are none, as the standard says of all that is invalid.
fn sent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut sent = headers.get_all(TRACEPARENT).iter();
    let only = sent.next().filter(|_| sent.next().is_none());
    only?.to_str().ok()?.parse().ok()
}

/// The outermost layer.
pub async fn correlate(mut request: Request, next: Next) -> Response {
    let id = match request.headers().get(HEADER) {
        Some(given) if is_usable(given) => given.clone(),
        Some(_) | None => mint(),
    };
    let place = TraceContext::of(sent(request.headers()));
    let state = request.headers().get(TRACESTATE).cloned();
    let span = tracing::info_span!(
        "request",
        correlation_id = id.to_str().unwrap_or_default(),
        trace_id = %place.own.trace,
        method = %request.method(),
        path = request.uri().path(),
    );
    let step = Step::request(&span, place, || name_of(&request));
    describe(&step, &request, &id);
    // For a door that serves the request in another task.
    request.extensions_mut().insert(span.clone());
    request.extensions_mut().insert(CorrelationId(id.clone()));
    request.extensions_mut().insert(place);
    let began = Instant::now();
    let answered = async {
        let response = next.run(request).await;
        tracing::debug!(status = response.status().as_u16(), elapsed = ?began.elapsed());
        response
    };
    let mut response = answered.instrument(span).await;
    let status = response.status();
    step.set("http.response.status_code", || Value::Number(status.as_u16().into()));
    if status.is_server_error() {
        step.fail(|| status.to_string());
    }
    drop(step);
    let headers = response.headers_mut();
    headers.insert(HEADER, id);
    let own = HeaderValue::try_from(place.own.to_string()).expect("digits and dashes");
    headers.insert(TRACEPARENT, own);
    if let (Some(state), TracedBy::Caller) = (state, place.by) {
        headers.insert(TRACESTATE, state);
    }
    response
}

/// What a span is called, as OpenTelemetry's conventions say: never by a path that callers choose.
fn name_of(request: &Request) -> String {
    match request.extensions().get::<MatchedPath>() {
        Some(route) => format!("{} {}", request.method(), route.as_str()),
        None => request.method().to_string(),
    }
}

fn describe(step: &Step, request: &Request, id: &HeaderValue) {
    step.set("http.request.method", || Value::Text(request.method().to_string()));
    if let Some(route) = request.extensions().get::<MatchedPath>() {
        step.set("http.route", || Value::Text(route.as_str().to_owned()));
    }
    step.set("url.path", || Value::Text(request.uri().path().to_owned()));
    step.set("correlation_id", || Value::Text(id.to_str().unwrap_or_default().to_owned()));
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
    fn one_valid_traceparent_counts_and_two_are_none() {
        const SENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let headers = |values: &[&'static str]| -> HeaderMap {
            values.iter().map(|value| (TRACEPARENT, HeaderValue::from_static(value))).collect()
        };
        assert_eq!(sent(&headers(&[SENT])), SENT.parse().ok());
        for none in [&[][..], &["nonsense"], &[SENT, SENT]] {
            assert_eq!(sent(&headers(none)), None, "{none:?}");
        }
    }

    #[test]
    fn no_two_minted_are_the_same_and_all_are_usable() {
        let (one, other) = (mint(), mint());
        assert_ne!(one, other);
        assert!(is_usable(&one) && is_usable(&other));
    }
}
