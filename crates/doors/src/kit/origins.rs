//! Refuses requests of web pages whose origin is not allowed.
//!
//! A page that the user visits can make the browser send requests here. It cannot choose `Host` (which exposes DNS
//! rebinding to 127.0.0.1), and it cannot omit `Origin` from a request with side effects. In local mode, where access
//! to this machine is the credential, both must be ours. In keys mode a page has no credential of its own, and only
//! `Origin` is checked.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::refusal::Refusal;
use crate::auth::Mode;

/// How long a browser may cache a preflight answer.
const PREFLIGHT_MAX_AGE_SECS: &str = "600";
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";
/// Request headers allowed if the preflight names none.
const HEADERS: &str = "authorization, content-type, x-api-key";
/// Response headers that a page may read.
const EXPOSED: &str = "location, retry-after, www-authenticate, x-correlation-id";

/// Who can reach the address that the daemon listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Loopback,
    Network,
}

/// The origins whose pages may call the API (CORS).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// Lower case, as browsers write them.
    invited: Vec<String>,
}

/// The kind of page that a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// No page, or one that we served ourselves.
    Own,
    Invited(HeaderValue),
    /// A page that may not read our answers.
    Foreign,
}

impl Origins {
    pub fn new(invited: impl IntoIterator<Item = String>) -> Self {
        Self { invited: invited.into_iter().map(|origin| origin.to_ascii_lowercase()).collect() }
    }

    /// Classifies the origin of a request, or refuses it.
    pub fn check(&self, headers: &HeaderMap, mode: Mode, reach: Reach) -> Result<Page, Refusal> {
        let own = headers.get(header::HOST).map(lower).unwrap_or_default();
        let mut page = Page::Own;
        for given in headers.get_all(header::ORIGIN) {
            let origin = lower(given);
            // Another port of this machine is another origin: only a page that we served ourselves may call.
            let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            page = if host == Some(own.as_str()) {
                Page::Own
            } else if self.invited.contains(&origin) {
                Page::Invited(given.clone())
            } else if mode == Mode::Local || reach == Reach::Loopback {
                return Err(Refusal::ForeignOrigin { origin });
            } else {
                Page::Foreign
            };
        }
        Ok(page)
    }
}

fn lower(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase()
}

/// Refuses requests that are not addressed to this machine's loopback.
pub fn check_host(headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => lower(host),
        (None, _) => return Err(Refusal::ForeignHost { host: "none".to_owned() }),
        (Some(_), Some(_)) => return Err(Refusal::ForeignHost { host: "several".to_owned() }),
    };
    let authority = uri.authority().map(|authority| authority.as_str().to_ascii_lowercase());
    let mut named = [Some(host), authority].into_iter().flatten();
    match named.find(|host| !is_loopback_host(host)) {
        Some(host) => Err(Refusal::ForeignHost { host }),
        None => Ok(()),
    }
}

/// Whether a `Host` names this machine's loopback, with any port or none.
pub fn is_loopback_host(host: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].into_iter().any(|name| match host.strip_prefix(name) {
        Some("") => true,
        Some(rest) => rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok()),
        None => false,
    })
}

impl Page {
    /// The answer to a CORS preflight.
    pub fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response> {
        let asks = headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if *method != Method::OPTIONS || !asks || !matches!(self, Self::Invited(_)) {
            return None;
        }
        let fixed = |text: &'static str| HeaderValue::from_static(text);
        let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let mut answer = StatusCode::NO_CONTENT.into_response();
        let answered = answer.headers_mut();
        answered.insert(header::ACCESS_CONTROL_ALLOW_METHODS, fixed(METHODS));
        let asked = asked.unwrap_or_else(|| fixed(HEADERS));
        answered.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
        answered.insert(header::ACCESS_CONTROL_MAX_AGE, fixed(PREFLIGHT_MAX_AGE_SECS));
        self.mark(&mut answer);
        Some(answer)
    }

    /// Adds the CORS headers that let an allowed page read the answer.
    pub fn mark(&self, answer: &mut Response) {
        let Self::Invited(origin) = self else { return };
        let marks: [(HeaderName, HeaderValue); 3] = [
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
            (header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED)),
            (header::VARY, HeaderValue::from_static("origin")),
        ];
        answer.headers_mut().extend(marks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(origin: &str) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).expect("a header");
        let host = (header::HOST, value("box.example:4500"));
        HeaderMap::from_iter([host, (header::ORIGIN, value(origin))])
    }

    #[test]
    fn only_loopback_names_are_ours() {
        for ours in ["localhost", "localhost:4500", "127.0.0.1:1", "[::1]", "[::1]:4500"] {
            assert!(is_loopback_host(ours), "{ours} was refused");
        }
        for foreign in [
            "",
            "example.com",
            "localhost.example.com",
            "localhost:4500.example.com",
            "127.0.0.1.nip.io",
            "127.0.0.1:99999",
            "localhost:",
            "8080-sbx.localhost:4500",
            "0.0.0.0:4500",
        ] {
            assert!(!is_loopback_host(foreign), "{foreign} was accepted");
        }
    }

    #[test]
    fn a_page_comes_in_where_it_is_invited_or_has_no_power() {
        let origins = Origins::new(["https://App.example".to_owned()]);
        let page = |origin: &str, mode, reach| origins.check(&from(origin), mode, reach);
        for (mode, reach) in [(Mode::Local, Reach::Loopback), (Mode::Keys, Reach::Network)] {
            let invited = page("https://app.example", mode, reach).expect("it is invited");
            assert!(matches!(invited, Page::Invited(_)), "{mode:?}");
            assert_eq!(page("https://box.example:4500", mode, reach).expect("ours"), Page::Own);
        }
        assert!(page("https://evil.example", Mode::Local, Reach::Loopback).is_err());
        assert!(page("https://evil.example", Mode::Keys, Reach::Loopback).is_err());
        let foreign = page("https://evil.example", Mode::Keys, Reach::Network).expect("served");
        assert_eq!(foreign, Page::Foreign);
    }
}
