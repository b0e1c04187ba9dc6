//! Where a request carries its credential.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::refusal::Refusal;

/// One way to send a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `Authorization: Bearer CREDENTIAL`.
    Bearer,
    /// `Authorization: Basic …`: the password is the credential, the user name is ignored.
    Basic,
    /// A header (name in lower case) that holds only the credential.
    Header(&'static str),
}

/// The schemes that doors accept by default.
pub const OURS: &[Scheme] = &[Scheme::Bearer, Scheme::Header("x-api-key")];

/// The credential of a request. Two different credentials are refused: a proxy in between may have checked the other
/// one.
pub fn find(headers: &HeaderMap, schemes: &[Scheme]) -> Result<String, Refusal> {
    let mut found: Option<String> = None;
    let authorizes = schemes.iter().any(|scheme| scheme.challenge().is_some());
    let standard = authorizes.then(|| headers.get_all(header::AUTHORIZATION));
    let standard = standard.into_iter().flatten().map(|value| of_authorization(value, schemes));
    let own = schemes.iter().filter_map(|scheme| match scheme {
        Scheme::Header(name) => Some(headers.get_all(*name)),
        Scheme::Bearer | Scheme::Basic => None,
    });
    let own = own.flatten().map(|value| text(value).map(|text| text.trim().to_owned()));
    for credential in standard.chain(own) {
        let credential = credential?;
        if found.as_ref().is_some_and(|other| *other != credential) {
            return Err(refused("the request has two credentials, and they differ"));
        }
        found = Some(credential);
    }
    found.ok_or_else(|| refused("the request has no credential"))
}

fn of_authorization(value: &HeaderValue, schemes: &[Scheme]) -> Result<String, Refusal> {
    let given = text(value)?;
    let read = schemes.iter().find_map(|scheme| scheme.read(given));
    read.ok_or_else(|| {
        if schemes.contains(&Scheme::Bearer) {
            refused("Authorization is not `Bearer KEY`")
        } else {
            refused("Authorization is not `Basic`, with the key as password")
        }
    })
}

fn text(value: &HeaderValue) -> Result<&str, Refusal> {
    value.to_str().map_err(|_| refused("the credential is not text"))
}

fn refused(problem: &str) -> Refusal {
    Refusal::Unauthenticated { problem: problem.to_owned() }
}

impl Scheme {
    /// The credential in an `Authorization` header of this scheme. The scheme's name is case-insensitive.
    fn read(self, authorization: &str) -> Option<String> {
        let (name, rest) = authorization.trim().split_once(' ')?;
        match self {
            Self::Bearer if name.eq_ignore_ascii_case("bearer") => Some(rest.trim().to_owned()),
            Self::Basic if name.eq_ignore_ascii_case("basic") => {
                let pair = String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?;
                Some(pair.split_once(':')?.1.to_owned())
            }
            Self::Bearer | Self::Basic | Self::Header(_) => None,
        }
    }

    fn challenge(self) -> Option<HeaderValue> {
        match self {
            Self::Bearer => Some(HeaderValue::from_static("Bearer realm=\"sandkeep\"")),
            Self::Basic => Some(HeaderValue::from_static("Basic realm=\"sandkeep\"")),
            Self::Header(_) => None,
        }
    }
}

/// HTTP requires every 401 to state which schemes are accepted.
pub fn challenge(answer: &mut Response, schemes: &[Scheme]) {
    if answer.status() == StatusCode::UNAUTHORIZED {
        answer.headers_mut().remove(header::WWW_AUTHENTICATE);
        for accepted in schemes.iter().filter_map(|scheme| scheme.challenge()) {
            answer.headers_mut().append(header::WWW_AUTHENTICATE, accepted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(schemes: &[Scheme], headers: &[(&'static str, &'static str)]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        find(&map, schemes).ok()
    }

    #[test]
    fn a_door_reads_only_what_it_accepts() {
        let basic = ("authorization", "basic bm9ib2R5OmtleQ==");
        assert_eq!(found(&[Scheme::Basic], &[basic]).as_deref(), Some("key"));
        assert_eq!(found(OURS, &[basic]), None, "a door that does not know the scheme");
        let own = [("x-mine", "key"), ("authorization", "Bearer other")];
        assert_eq!(found(&[Scheme::Header("x-mine")], &own).as_deref(), Some("key"));
        assert_eq!(found(OURS, &own).as_deref(), Some("other"));
    }

    #[test]
    fn two_credentials_must_be_the_same() {
        let bearer = ("authorization", "BEARER  key ");
        assert_eq!(found(OURS, &[bearer, ("x-api-key", "key")]).as_deref(), Some("key"));
        assert_eq!(found(OURS, &[bearer, ("x-api-key", "other")]), None);
        assert_eq!(found(OURS, &[("x-api-key", "one"), ("x-api-key", "two")]), None);
    }
}
