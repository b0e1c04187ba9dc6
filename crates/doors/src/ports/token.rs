//! A port token in a URL, and the cookie that it is exchanged for. Neither ever reaches a server in a sandbox.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use jiff::Timestamp;

/// The query parameter of a signed URL.
pub const PARAMETER: &str = "sandkeep_token";
/// A host-only cookie, valid for this host alone: the token in it names port and sandbox.
const COOKIE: &str = "sandkeep_port";
/// The cookie over TLS. Browsers accept this prefix only from the host itself, so no page of another host can set it.
const COOKIE_TLS: &str = "__Host-sandkeep_port";
/// Both names are reserved: servers inside can neither set nor read them.
pub const COOKIES: [&str; 2] = [COOKIE, COOKIE_TLS];

/// The cookie that is valid for this protocol.
pub fn cookie_name(proto: &str) -> &'static str {
    if proto == "https" { COOKIE_TLS } else { COOKIE }
}

/// The target of a request without its port token, and the token.
pub fn take(uri: &Uri) -> (PathAndQuery, Option<String>) {
    let whole = || uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let Some(query) = uri.query() else { return (whole(), None) };
    let token_of = |pair: &str| pair.strip_prefix(PARAMETER)?.strip_prefix('=').map(str::to_owned);
    let Some(token) = query.split('&').find_map(token_of) else { return (whole(), None) };
    let kept: Vec<&str> = query.split('&').filter(|pair| token_of(pair).is_none()).collect();
    let target = if kept.is_empty() {
        uri.path().to_owned()
    } else {
        format!("{}?{}", uri.path(), kept.join("&"))
    };
    // A part of a valid target is a valid target.
    (PathAndQuery::try_from(target).unwrap_or_else(|_| whole()), Some(token))
}

/// The cookie for a port token, which expires with it.
pub fn cookie(token: &str, expires_at: Timestamp, proto: &str) -> String {
    let seconds = expires_at.as_second() - Timestamp::now().as_second();
    let secure = if proto == "https" { "; Secure" } else { "" };
    let name = cookie_name(proto);
    format!("{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_tls_the_cookie_is_the_hosts_own_for_sure() {
        let until = Timestamp::now() + jiff::SignedDuration::from_secs(60);
        let cookie = cookie("t", until, "https");
        assert!(cookie.starts_with("__Host-sandkeep_port=t; Path=/; "), "{cookie}");
        assert!(cookie.ends_with("; Secure") && !cookie.contains("Domain"), "{cookie}");
        assert!(super::cookie("t", until, "http").starts_with("sandkeep_port=t; "));
    }

    #[test]
    fn the_pass_is_taken_out_and_the_rest_stays_as_it_was() {
        for (uri, target, token) in [
            ("/a/b?x=1&y", "/a/b?x=1&y", None),
            ("/", "/", None),
            ("/a?sandkeep_token=t", "/a", Some("t")),
            ("/a?x=%20&sandkeep_token=t&y=2", "/a?x=%20&y=2", Some("t")),
            ("/a?sandkeep_token=t&sandkeep_token=u", "/a", Some("t")),
            ("/a?sandkeep_token", "/a?sandkeep_token", None),
            ("/a?not_sandkeep_token=t", "/a?not_sandkeep_token=t", None),
        ] {
            let (left, taken) = take(&uri.parse().expect("a URI"));
            assert_eq!((left.as_str(), taken.as_deref()), (target, token), "{uri}");
        }
    }
}
