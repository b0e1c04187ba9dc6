//! One bounded request to an issuer: encrypted unless it stays on this machine, no redirects, no proxy,
//! and only to addresses that the administrator's own words lead to.
//!
//! An address that somebody else chose (an issuer may name any place for its keys) must be a public one,
//! or the host that was configured. It is resolved once and the request goes to what was checked, so a
//! name that changes its mind in between leads nowhere else.

use std::net::{IpAddr, SocketAddr};

use reqwest::Url;
use reqwest::redirect::Policy;

use crate::limits::{JWKS_ANSWER, JWKS_MAX_BYTES};

#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    #[error("{url:?} is not a URL")]
    NotAUrl { url: String },
    #[error("{url} is not https; plain http is accepted on loopback only")]
    NotEncrypted { url: Url },
    #[error("{host} is at {address}, which is not a public address, and nobody configured it")]
    NotPublic { host: String, address: IpAddr },
    #[error("{host} has no address")]
    Unknown { host: String },
    #[error("cannot resolve {host}: {source}")]
    Resolve {
        host: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{url} does not answer: {problem}")]
    Failed { url: Url, problem: String },
    #[error("{url} answers {status}")]
    Status { url: Url, status: u16 },
    #[error("{url} answers with more than {JWKS_MAX_BYTES} bytes")]
    TooLarge { url: Url },
}

/// Who chose a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    ByUs,
    ByOthers,
}

/// Reads a URL that a request may go to.
pub fn url(text: &str) -> Result<Url, OutgoingError> {
    let url = Url::parse(text).map_err(|_| OutgoingError::NotAUrl { url: text.to_owned() })?;
    let host = url.host_str().unwrap_or_default();
    let local = host == "localhost"
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match url.scheme() {
        "https" => Ok(url),
        "http" if local => Ok(url),
        _ => Err(OutgoingError::NotEncrypted { url }),
    }
}

pub async fn get(url: &Url, chosen: Chosen) -> Result<Vec<u8>, OutgoingError> {
    let failed = |e: reqwest::Error| OutgoingError::Failed {
        url: url.clone(),
        problem: crate::error::with_causes(&e.without_url()),
    };
    let timed_out = || OutgoingError::Failed {
        url: url.clone(),
        problem: format!("it took more than {} s", JWKS_ANSWER.as_secs()),
    };
    let work = async {
        let addresses = resolve(url, chosen).await?;
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .resolve_to_addrs(url.host_str().unwrap_or_default(), &addresses)
            .build()
            .map_err(failed)?;
        let mut response = client.get(url.clone()).send().await.map_err(failed)?;
        let status = response.status();
        if !status.is_success() {
            return Err(OutgoingError::Status { url: url.clone(), status: status.as_u16() });
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            body.extend_from_slice(&chunk);
            if body.len() > JWKS_MAX_BYTES {
                return Err(OutgoingError::TooLarge { url: url.clone() });
            }
        }
        Ok(body)
    };
    tokio::time::timeout(JWKS_ANSWER, work).await.unwrap_or_else(|_| Err(timed_out()))
}

async fn resolve(url: &Url, chosen: Chosen) -> Result<Vec<SocketAddr>, OutgoingError> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = url.port_or_known_default().unwrap_or_default();
    let found = tokio::net::lookup_host((host.as_str(), port)).await.map(Vec::from_iter);
    let addresses: Vec<SocketAddr> = match found {
        Ok(found) => found,
        Err(source) => return Err(OutgoingError::Resolve { host, source }),
    };
    if addresses.is_empty() {
        return Err(OutgoingError::Unknown { host });
    }
    let foreign = addresses.iter().map(SocketAddr::ip).find(|address| !is_public(*address));
    match (chosen, foreign) {
        (Chosen::ByOthers, Some(address)) => Err(OutgoingError::NotPublic { host, address }),
        (Chosen::ByUs | Chosen::ByOthers, _) => Ok(addresses),
    }
}

fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            let reserved =
                a == 0 || a >= 240 || (a == 192 && b == 0) || (a == 198 && (b & !1) == 18);
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || shared
                || reserved)
        }
        // Only 2000::/3 is given out; in it, 2002::/16 and 64:ff9b::/96 wrap addresses of IPv4.
        IpAddr::V6(v6) => (v6.segments()[0] & 0xe000) == 0x2000 && v6.segments()[0] != 0x2002,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_encrypted_or_stays_here_may_be_asked() {
        for good in
            ["https://id.example/x", "http://127.0.0.1:1/x", "http://[::1]/", "http://localhost/"]
        {
            assert!(url(good).is_ok(), "{good}");
        }
        for bad in ["http://id.example/x", "http://10.0.0.1/", "ftp://127.0.0.1/", "id.example", ""]
        {
            assert!(url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_of_this_and_other_inner_networks_are_not_public() {
        for inner in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "2002:7f00:1::",
            "64:ff9b::a00:1",
            "198.18.0.1",
        ] {
            assert!(!is_public(inner.parse().expect("an address")), "{inner}");
        }
        for outer in ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "100.128.0.1", "172.32.0.1"] {
            assert!(is_public(outer.parse().expect("an address")), "{outer}");
        }
    }

    #[tokio::test]
    async fn a_place_that_others_chose_is_not_asked_if_it_is_not_public() {
        let here = url("http://127.0.0.1:9/keys").expect("a URL");
        let refused = get(&here, Chosen::ByOthers).await;
        assert!(matches!(refused, Err(OutgoingError::NotPublic { .. })), "{refused:?}");
    }
}
