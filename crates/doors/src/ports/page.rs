//! Pages that a person sees instead of a server's own: small, without scripts.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::kit::{Dialect, Refusal};
use crate::rest::Rest;
use crate::rest::problem::{Problem, problem_of, status_of};

/// Refresh interval of the page about a closed port, for the browser.
const RETRY_SECS: &str = "2";
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors *";

/// Whether the client prefers HTML to JSON.
pub fn wants_page(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|range| {
        let essence = range.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("text/html")
    })
}

/// The format of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalFormat {
    Page,
    Problem,
}

impl RefusalFormat {
    pub fn for_whom(headers: &HeaderMap) -> Self {
        if wants_page(headers) { Self::Page } else { Self::Problem }
    }
}

impl Dialect for RefusalFormat {
    fn refuse(&self, refusal: &Refusal, path: &str) -> Response {
        if *self == Self::Problem {
            return Rest.refuse(refusal, path);
        }
        let problem = problem_of(refusal, path);
        let headers = [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::CACHE_CONTROL, "no-store"),
        ];
        let status = status_of(refusal.code());
        let mut answer = (status, headers, page(&problem)).into_response();
        if problem.retryable && status == StatusCode::BAD_GATEWAY {
            answer.headers_mut().insert(header::REFRESH, HeaderValue::from_static(RETRY_SECS));
        }
        answer
    }
}

fn page(problem: &Problem) -> String {
    let Problem { title, detail, remediation, code, .. } = problem;
    let [title, detail, remediation, code] = [title, detail, remediation, code].map(|t| escape(t));
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
         <style>body{{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1em}}\
         code{{color:#666}}</style>\
         <h1>{title}</h1><p>{detail}</p><p>{remediation}</p><p><code>sandkeep: {code}</code></p></html>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_page_is_markup_of_somebody_else() {
        let refusal = Refusal::PortBroke { problem: "<script>alert(1)</script>".to_owned() };
        let html = page(&Problem::from(&refusal));
        assert!(!html.contains("<script>") && html.contains("&lt;script&gt;"), "{html}");
    }

    #[test]
    fn a_page_is_for_those_who_ask_for_one() {
        let accept = |value: &'static str| {
            HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(value))])
        };
        assert!(wants_page(&accept("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")));
        assert!(!wants_page(&accept("*/*")));
        assert!(!wants_page(&HeaderMap::new()));
    }
}
