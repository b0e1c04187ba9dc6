//! Keeps web pages away from a daemon on loopback. A page the user visits can make the browser send
//! requests here, but it cannot choose `Host` (so a name that was rebound to 127.0.0.1 shows) nor
//! leave out `Origin` where the request has an effect.

use axum::extract::Request;
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::{Refusal, render};
use crate::sandbox::Principal;

/// Lets no request through that was not meant for us.
pub async fn check(mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let response = match is_ours(request.headers(), request.uri()) {
        Ok(()) => {
            // Whoever got here is the user who runs the daemon: see `server::check_peer`.
            request.extensions_mut().insert(Principal::local());
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    render(response, &path)
}

fn is_ours(headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => String::from_utf8_lossy(host.as_bytes()).to_ascii_lowercase(),
        (None, _) => return Err(Refusal::ForeignHost { host: "none".to_owned() }),
        (Some(_), Some(_)) => return Err(Refusal::ForeignHost { host: "several".to_owned() }),
    };
    let authority = uri.authority().map(|authority| authority.as_str().to_ascii_lowercase());
    if let Some(foreign) =
        [Some(&host), authority.as_ref()].into_iter().flatten().find(|host| !is_loopback_host(host))
    {
        return Err(Refusal::ForeignHost { host: foreign.clone() });
    }
    // Another port of this machine is another origin: only a page we served ourselves may call.
    for origin in headers.get_all(header::ORIGIN) {
        let origin = String::from_utf8_lossy(origin.as_bytes()).to_ascii_lowercase();
        if origin.strip_prefix("http://") != Some(host.as_str()) {
            return Err(Refusal::ForeignOrigin { origin });
        }
    }
    Ok(())
}

/// Whether a `Host` names this machine's loopback, with any port or none.
pub fn is_loopback_host(host: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].into_iter().any(|name| match host.strip_prefix(name) {
        Some("") => true,
        Some(rest) => rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok()),
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
