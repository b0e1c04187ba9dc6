//! `x-correlation-id` is on every answer and on every log line of a request. It is the caller's own id if that is
//! usable, otherwise a new one. A caller's id ends up in logs and headers, so it must be short and visible ASCII; any
//! other is replaced.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use sandkeep_core::limits::CORRELATION_ID_MAX_BYTES;

pub const HEADER: HeaderName = HeaderName::from_static("x-correlation-id");

/// The outermost layer.
pub async fn correlate(mut request: Request, next: Next) -> Response {
    let id = match request.headers().get(HEADER) {
        Some(given) if is_usable(given) => given.clone(),
        Some(_) | None => mint(),
    };
    let span = tracing::info_span!(
        "request",
        correlation_id = id.to_str().unwrap_or_default(),
        method = %request.method(),
        path = request.uri().path(),
    );
    // For a door that serves the request in another task.
    request.extensions_mut().insert(span.clone());
    let began = Instant::now();
    let answered = async {
        let response = next.run(request).await;
        tracing::debug!(status = response.status().as_u16(), elapsed = ?began.elapsed());
        response
    };
    let mut response = answered.instrument(span).await;
    response.headers_mut().insert(HEADER, id);
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
    fn no_two_minted_are_the_same_and_all_are_usable() {
        let (one, other) = (mint(), mint());
        assert_ne!(one, other);
        assert!(is_usable(&one) && is_usable(&other));
    }
}
