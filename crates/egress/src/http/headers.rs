//! Which headers are about one connection only, and for which host a request is.

use std::net::IpAddr;

use hyper::Uri;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;

use sandkeep_core::network::host_name;

use crate::policy::{Host, Transport};

/// A host and a port, as a request names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostAndPort {
    pub(crate) host: Host,
    pub(crate) port: Option<u16>,
}

/// Reads `host` or `host:port`. Addresses in other notations are no names, and neither is anything with credentials.
pub(crate) fn authority(text: &str) -> Option<HostAndPort> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            (address, rest.strip_prefix(':').or(rest.is_empty().then_some("")))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, Some("")),
        },
    };
    let port = match port? {
        "" if !text.ends_with(':') => None,
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits.parse().ok()?),
        _ => return None,
    };
    let host = match host.parse::<IpAddr>() {
        Ok(address) => Host::Address(address.to_canonical()),
        Err(_) => Host::Name(host_name(host).ok()?),
    };
    Some(HostAndPort { host, port })
}

/// Why a request is not for one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Ambiguous {
    #[error("it has several Host headers")]
    SeveralHosts,
    #[error("its Host header is not a host")]
    Host,
    #[error("its target is not a host")]
    Target,
    #[error("its target and its Host header differ")]
    Differ,
}

/// The one authority that a request names: in its URI, in its Host header, or the same in both. `None` if it names
/// none; an error says what is wrong.
pub(super) fn of_request(request: &Parts) -> Result<Option<HostAndPort>, Ambiguous> {
    let mut hosts = request.headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return Err(Ambiguous::SeveralHosts),
        (Some(host), None) => {
            let text = host.to_str().ok().and_then(authority);
            Some(text.ok_or(Ambiguous::Host)?)
        }
        (None, None) => None,
    };
    let target = match request.uri.authority() {
        Some(target) => Some(authority(target.as_str()).ok_or(Ambiguous::Target)?),
        None => None,
    };
    match (host, target) {
        (Some(host), Some(target)) if host != target => Err(Ambiguous::Differ),
        (host, target) => Ok(target.or(host)),
    }
}

/// Removes what is about one connection only (RFC 9110, 7.6.1), and what its Connection headers name.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    const HOP_BY_HOP: [&str; 8] = [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    let trailers = headers.get(header::TE).is_some_and(|te| te == "trailers");
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        // Some headers decide what a request means, and are not a connection's.
        if ![header::HOST, header::AUTHORIZATION, header::CONTENT_LENGTH].contains(&name) {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    // gRPC servers want to know that trailers are understood.
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether the client asks to go on as a WebSocket. Other protocols are not offered.
pub(super) fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let has = |name: HeaderName, word: &str| {
        let values = headers.get_all(name);
        let mut words = values.iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(','));
        words.any(|found| found.trim().eq_ignore_ascii_case(word))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket")
}

/// Makes the headers that ask for it, or agree to it.
pub(super) fn set_websocket(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

/// The port of a URI without one.
pub(super) fn default_port(transport: Transport) -> u16 {
    match transport {
        Transport::Tls => 443,
        Transport::Plain => 80,
    }
}

/// The part of a URI that a server gets.
pub(super) fn origin_form(uri: &Uri) -> Option<Uri> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path.is_empty() { "/" } else { path };
    path.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_a_name_or_an_address_in_its_usual_notation() {
        for (text, host, port) in [
            ("Api.Example.com", "api.example.com", None),
            ("api.example.com.:443", "api.example.com", Some(443)),
            ("192.0.2.7:80", "192.0.2.7", Some(80)),
            ("[2001:db8::1]:80", "2001:db8::1", Some(80)),
            ("[::ffff:192.0.2.7]", "192.0.2.7", None),
        ] {
            let read = authority(text).expect(text);
            assert_eq!((read.host.to_string().as_str(), read.port), (host, port), "{text}");
        }
        for text in [
            "",
            "a.example:",
            "a.example:+80",
            "a.example:80:80",
            "user@a.example",
            "a.example/b",
            "2852039166",
            "0xa9fea9fe",
            "0xa9.0xfe.0xa9.0xfe",
            "169.254.43518",
            "0251.0376.0251.0376",
            "[fe80::1%lo]",
            "[::1",
            "[::1]80",
            "a b.example",
            "a.example\u{0}",
        ] {
            assert_eq!(authority(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_about_one_connection_does_not_pass() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-private, authorization"),
            ("x-private", "1"),
            ("authorization", "2"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("accept", "3"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        remove_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "authorization", "te"]);
    }
}
