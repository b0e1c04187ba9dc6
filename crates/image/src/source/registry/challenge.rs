//! A registry's authentication challenge, the `WWW-Authenticate` of a 401, which may offer several schemes.

use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

/// How to authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    Basic,
    /// With a token from `realm`.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// The best supported scheme in the headers; a token is preferred to a password.
pub fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let offered: Vec<Offer> = values.flat_map(offers).collect();
    let named = |name: &str| offered.iter().find(|o| o.scheme.eq_ignore_ascii_case(name));
    if let Some(bearer) = named("bearer")
        && let Some(realm) = bearer.parameter("realm")
    {
        let (service, scope) = (bearer.parameter("service"), bearer.parameter("scope"));
        return Some(Challenge::Bearer { realm, service, scope });
    }
    named("basic").map(|_| Challenge::Basic)
}

struct Offer {
    scheme: String,
    parameters: Vec<(String, String)>,
}

impl Offer {
    fn parameter(&self, name: &str) -> Option<String> {
        let found = self.parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
    }
}

/// A word that is not followed by `=` starts a scheme; a `name=value` belongs to the scheme before it.
fn offers(text: &str) -> Vec<Offer> {
    let mut found: Vec<Offer> = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find([' ', '\t', ',', '=']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        match (after.strip_prefix('='), found.last_mut()) {
            _ if word.is_empty() => return found,
            (Some(after), Some(offer)) => {
                let (value, after) = value(after);
                offer.parameters.push((word.to_owned(), value));
                rest = after;
            }
            // A value without a scheme: not understood.
            (Some(_), None) => return found,
            (None, _) => {
                found.push(Offer { scheme: word.to_owned(), parameters: Vec::new() });
                rest = after;
            }
        }
    }
}

/// A value, quoted or not, and the rest.
fn value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, c)| c)),
            _ => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, value.parse().expect("a header"));
        }
        challenge(&headers)
    }

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (service, scope) = (owned(service), owned(scope));
        Some(Challenge::Bearer { realm: realm.to_owned(), service, scope })
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/python:pull,push""#;
        let scope = "repository:library/python:pull,push";
        let token = "https://auth.docker.io/token";
        assert_eq!(read(&[hub]), bearer(token, Some("registry.docker.io"), Some(scope)));
        assert_eq!(read(&["Basic realm=\"Registry\""]), Some(Challenge::Basic));
        assert_eq!(read(&["basic"]), Some(Challenge::Basic));
        assert_eq!(
            read(&["bearer realm=https://a/t , service=\"a\\\"b\""]),
            bearer("https://a/t", Some("a\"b"), None)
        );
        assert_eq!(
            read(&["Basic realm=\"x\", Bearer realm=\"https://a/t\""]),
            bearer("https://a/t", None, None)
        );
        assert_eq!(
            read(&["Basic realm=\"x\"", "Bearer realm=\"https://a/t\""]),
            bearer("https://a/t", None, None)
        );
        assert_eq!(read(&["Negotiate"]), None);
        assert_eq!(read(&["Bearer service=\"no realm\""]), None);
        assert_eq!(read(&[]), None);
    }

    proptest::proptest! {
        #[test]
        fn no_challenge_panics(text in "[ -~]{0,60}") {
            let _ = read(&[&text]);
        }
    }
}
