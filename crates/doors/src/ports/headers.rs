//! Which headers are forwarded. hyper frames bodies anew on both sides, so no header can make two parsers disagree
//! about where a message ends.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// Hop-by-hop headers.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Forwarding headers of the request. Only we know the true values.
const FORWARDED: [HeaderName; 7] = [
    header::FORWARDED,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
    X_FORWARDED_PREFIX,
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-real-ip"),
];
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Headers that a server sets for its whole origin; the API's origin does not belong to it.
const OF_THE_ORIGIN: [HeaderName; 12] = [
    header::SET_COOKIE,
    header::CONTENT_SECURITY_POLICY,
    header::CONTENT_SECURITY_POLICY_REPORT_ONLY,
    header::STRICT_TRANSPORT_SECURITY,
    header::WWW_AUTHENTICATE,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
    HeaderName::from_static("reporting-endpoints"),
    HeaderName::from_static("report-to"),
    HeaderName::from_static("nel"),
];

/// Headers with effect beyond the server's own host: browsers would delete the cookies of a whole domain, or refuse
/// plain HTTP for its subdomains.
const BEYOND_THE_HOST: [HeaderName; 2] =
    [header::STRICT_TRANSPORT_SECURITY, HeaderName::from_static("clear-site-data")];

/// The protocol that a message upgrades to.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = connection_options(headers).any(|option| option.eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| asked).cloned()
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::CONNECTION).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(',')).map(str::trim)
}

/// Removes hop-by-hop headers. A caller that forwards an upgrade adds it again.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let trailers = headers.get(header::TE).is_some_and(|te| te == "trailers");
    // A chunked body has no length, whatever the other headers say.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    let named: Vec<HeaderName> = connection_options(headers)
        .filter_map(|option| HeaderName::try_from(option).ok())
        // Those describe the message, not the connection.
        .filter(|name| ![header::HOST, header::CONTENT_LENGTH].contains(name))
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Adds the headers that request an upgrade.
pub fn ask_for_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

/// Removes headers meant for us. Credentials are never forwarded: a server in a sandbox could use them against the API.
pub fn strip_request(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    let ours = [header::AUTHORIZATION, X_API_KEY, header::EXPECT];
    for name in ours.iter().chain(&FORWARDED) {
        headers.remove(name);
    }
}

/// Removes one cookie from a request and returns all its values.
pub fn take_cookie(headers: &mut HeaderMap, name: &str) -> Vec<String> {
    let mut taken = Vec::new();
    let mut kept: Vec<String> = Vec::new();
    for value in headers.get_all(header::COOKIE) {
        let text = String::from_utf8_lossy(value.as_bytes());
        for pair in text.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some((key, value)) if key.trim() == name => taken.push(value.trim().to_owned()),
                Some(_) | None => kept.push(pair.to_owned()),
            }
        }
    }
    // HTTP/2 may send each cookie in a header of its own, which HTTP/1.1 inside must not.
    if !taken.is_empty() || headers.get_all(header::COOKIE).iter().count() > 1 {
        headers.remove(header::COOKIE);
        // A value that is not a valid header cannot come from a browser.
        if let Ok(value) = HeaderValue::try_from(kept.join("; "))
            && !kept.is_empty()
        {
            headers.insert(header::COOKIE, value);
        }
    }
    taken
}

/// Cleans an answer on the port's own host. Its cookies are restricted to that host: with a domain they would also
/// reach other sandboxes and the API.
///
/// An answer that upgrades the connection is cleaned like any other: browsers evaluate its headers as well.
pub fn clean_host_answer(headers: &mut HeaderMap, own_cookies: &[&str]) {
    strip_answer(headers);
    for name in &BEYOND_THE_HOST {
        headers.remove(name);
    }
    let cookies: Vec<HeaderValue> = headers
        .get_all(header::SET_COOKIE)
        .iter()
        .filter_map(|cookie| without_domain(cookie.as_bytes(), own_cookies))
        .collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
}

/// Removes hop-by-hop headers, except for the upgrade.
fn strip_answer(headers: &mut HeaderMap) {
    let protocol = upgrade(headers);
    strip_hop_by_hop(headers);
    headers.remove(header::ALT_SVC);
    if let Some(protocol) = protocol {
        ask_for_upgrade(headers, protocol);
    }
}

/// A cookie without its domain; `None` if it uses one of our names.
fn without_domain(cookie: &[u8], own: &[&str]) -> Option<HeaderValue> {
    let mut parts = cookie.split(|byte| *byte == b';');
    let pair = parts.next().unwrap_or_default();
    let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
    if own.iter().any(|own| name.trim_ascii().eq_ignore_ascii_case(own.as_bytes())) {
        return None;
    }
    let is_domain = |part: &[u8]| {
        let name = part.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(b"domain")
    };
    let kept: Vec<&[u8]> =
        std::iter::once(pair).chain(parts.filter(|part| !is_domain(part))).collect();
    HeaderValue::from_bytes(&kept.join(&b';')).ok()
}

/// Cleans an answer on the API's own origin: it may be data, but never a page with privileges.
pub fn clean_path_answer(headers: &mut HeaderMap) {
    strip_answer(headers);
    for name in &OF_THE_ORIGIN {
        headers.remove(name);
    }
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// Fixes a redirect of the server, which does not know its prefix.
pub fn prefix_location(headers: &mut HeaderMap, prefix: &str) {
    let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    let Some(path) = location.filter(|to| to.starts_with('/') && !to.starts_with("//")) else {
        return;
    };
    if let Ok(value) = HeaderValue::try_from(format!("{prefix}{path}")) {
        headers.insert(header::LOCATION, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            let value = HeaderValue::from_str(value).expect("a header");
            map.append(HeaderName::from_static(name), value);
        }
        map
    }

    fn names(map: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_concerns_one_connection_stays_there() {
        let mut map = headers(&[
            ("host", "h"),
            ("connection", "close, X-Secret, host"),
            ("x-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "x"),
            ("accept", "*/*"),
        ]);
        assert_eq!(upgrade(&map), None, "an upgrade must be named by the connection");
        strip_hop_by_hop(&mut map);
        assert_eq!(names(&map), ["accept", "host"]);
    }

    #[test]
    fn no_credential_and_no_claim_of_origin_is_forwarded() {
        let mut map = headers(&[
            ("authorization", "Bearer x"),
            ("x-api-key", "x"),
            ("x-forwarded-for", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("x-real-ip", "6.6.6.6"),
            ("cookie", "a=1"),
        ]);
        strip_request(&mut map);
        assert_eq!(names(&map), ["cookie"]);
    }

    #[test]
    fn our_cookie_is_taken_out_of_the_others() {
        let mut map = headers(&[("cookie", "a=1; ours=x; b=2"), ("cookie", "ours=y")]);
        assert_eq!(take_cookie(&mut map, "ours"), ["x", "y"]);
        assert_eq!(map[header::COOKIE], "a=1; b=2");
        let mut alone = headers(&[("cookie", "ours=x")]);
        assert_eq!(take_cookie(&mut alone, "ours"), ["x"]);
        assert!(alone.is_empty());
        let mut none = headers(&[("cookie", "a=1;b")]);
        assert!(take_cookie(&mut none, "ours").is_empty());
        assert_eq!(none[header::COOKIE], "a=1;b", "nothing of it was touched");
    }

    #[test]
    fn a_cookie_is_for_its_own_host_alone() {
        let mut map = headers(&[
            ("set-cookie", "a=1; Path=/; DOMAIN=.localhost; HttpOnly"),
            ("set-cookie", "ours=forged"),
            ("set-cookie", "b=domain"),
            ("alt-svc", "h3=\":443\""),
        ]);
        clean_host_answer(&mut map, &["ours"]);
        let cookies: Vec<_> = map.get_all(header::SET_COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; Path=/; HttpOnly", "b=domain"]);
        assert_eq!(names(&map), ["set-cookie"]);
    }

    #[test]
    fn a_change_of_protocol_says_nothing_else() {
        let switch = || {
            headers(&[
                ("connection", "Upgrade, x-hop"),
                ("upgrade", "websocket"),
                ("x-hop", "1"),
                ("sec-websocket-accept", "x"),
                ("set-cookie", "a=1; Domain=localhost"),
                ("clear-site-data", "\"*\""),
                ("strict-transport-security", "max-age=1; includeSubDomains"),
            ])
        };
        let kept = ["connection", "sec-websocket-accept", "set-cookie", "upgrade"];
        let mut by_host = switch();
        clean_host_answer(&mut by_host, &["ours"]);
        assert_eq!(
            (names(&by_host), &by_host[header::SET_COOKIE]),
            (kept.to_vec(), &"a=1".parse().expect("a value"))
        );
        assert_eq!(by_host[header::UPGRADE], "websocket");
        let mut by_path = switch();
        clean_path_answer(&mut by_path);
        assert!(by_path.contains_key(header::UPGRADE) && !by_path.contains_key(header::SET_COOKIE));
    }

    #[test]
    fn an_answer_on_the_origin_of_the_api_has_no_power_there() {
        let mut map = headers(&[
            ("set-cookie", "a=1"),
            ("content-security-policy", "script-src *"),
            ("clear-site-data", "\"*\""),
            ("strict-transport-security", "max-age=1"),
            ("location", "/login"),
        ]);
        clean_path_answer(&mut map);
        prefix_location(&mut map, "/api/v1/sandboxes/x/ports/80");
        assert_eq!(map[header::CONTENT_SECURITY_POLICY], "sandbox");
        assert_eq!(map[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(map[header::LOCATION], "/api/v1/sandboxes/x/ports/80/login");
        let rest = ["content-security-policy", "location", "x-content-type-options"];
        assert_eq!(names(&map), rest);
    }
}
