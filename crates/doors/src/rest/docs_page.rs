//! `/docs`: a page that shows `/openapi.json` to people. It is embedded, sends requests only to this daemon, and its
//! content security policy lets it run only scripts served from here.

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::openapi::Public;

pub const STYLE: &str = "/docs/style.css";
pub const SCRIPT: &str = "/docs/page.js";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The assets of the page; the page itself is an operation like any other.
pub fn parts<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route(STYLE, get(style)).route(SCRIPT, get(script))
}

/// The paths of [`parts`].
pub const PARTS: [&str; 2] = [STYLE, SCRIPT];

/// API documentation for people
///
/// Shows `/openapi.json`. All assets come from this daemon. Needs no credentials.
#[utoipa::path(
    get, path = "/docs", operation_id = "docs", tag = "service", security(()),
    responses((status = 200, description = "the page", body = String, content_type = "text/html"), Public)
)]
pub async fn page() -> Response {
    serve("text/html; charset=utf-8", include_str!("docs_page/index.html"))
}

async fn style() -> Response {
    serve("text/css; charset=utf-8", include_str!("docs_page/style.css"))
}

async fn script() -> Response {
    serve("text/javascript; charset=utf-8", include_str!("docs_page/page.js"))
}

fn serve(media_type: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, HeaderValue); 5] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // The page changes with the daemon, and is small.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_is_small_and_names_no_other_host() {
        let parts = [
            include_str!("docs_page/index.html"),
            include_str!("docs_page/style.css"),
            include_str!("docs_page/page.js"),
        ];
        let size: usize = parts.iter().map(|part| part.len()).sum();
        assert!(size < 20 * 1024, "{size} bytes");
        for part in parts {
            assert!(!part.contains("://"), "it must ask nobody else");
            assert!(
                !part.contains("innerHTML") && !part.contains("style="),
                "the policy forbids it"
            );
        }
    }
}
