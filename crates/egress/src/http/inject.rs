//! Puts secrets where their placeholders are: in headers of requests to their hosts, and nowhere else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use sandkeep_core::limits::EGRESS_HEADERS_MAX_BYTES;
use sandkeep_core::network::SecretValue;

use crate::rules::Secret;

/// The headers would be too large with the values in place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Headers that decide where a request goes and where it ends.
const LEFT_ALONE: [HeaderName; 3] =
    [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

pub(super) fn inject<'a>(
    headers: &mut HeaderMap,
    secrets: impl Iterator<Item = &'a Secret> + Clone,
) -> Result<(), TooLarge> {
    let mut space = EGRESS_HEADERS_MAX_BYTES;
    for (name, value) in headers.iter_mut().filter(|(name, _)| !LEFT_ALONE.contains(name)) {
        for secret in secrets.clone() {
            let replaced = if *name == header::AUTHORIZATION {
                in_basic(value.as_bytes(), secret, &mut space)?
            } else {
                None
            };
            let replaced = match replaced {
                Some(replaced) => Some(replaced),
                None => in_bytes(value.as_bytes(), secret, &mut space)?,
            };
            // A secret has no control characters, so that a header can hold it.
            if let Some(new) = replaced.and_then(|new| HeaderValue::from_bytes(&new).ok()) {
                *value = new;
                value.set_sensitive(true);
            }
        }
    }
    Ok(())
}

/// Sets headers, in place of those of the same name.
pub(super) fn set<'a>(
    headers: &mut HeaderMap,
    rules: impl Iterator<Item = (&'a str, &'a SecretValue)>,
) {
    for (name, value) in rules {
        let name = HeaderName::try_from(name).ok().filter(|name| !LEFT_ALONE.contains(name));
        let value = HeaderValue::try_from(value.reveal());
        if let (Some(name), Ok(mut value)) = (name, value) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }
}

/// `user:placeholder` in base64, as git and curl send it.
fn in_basic(value: &[u8], secret: &Secret, space: &mut usize) -> Result<Option<Vec<u8>>, TooLarge> {
    const SCHEME: &[u8] = b"basic ";
    let Some((scheme, encoded)) = value.split_at_checked(SCHEME.len()) else { return Ok(None) };
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return Ok(None);
    }
    let Ok(decoded) = BASE64.decode(encoded.trim_ascii()) else { return Ok(None) };
    let replaced = in_bytes(&decoded, secret, space)?;
    Ok(replaced.map(|replaced| format!("Basic {}", BASE64.encode(replaced)).into_bytes()))
}

fn in_bytes(value: &[u8], secret: &Secret, space: &mut usize) -> Result<Option<Vec<u8>>, TooLarge> {
    let placeholder = secret.placeholder.as_bytes();
    if placeholder.is_empty() {
        return Ok(None);
    }
    let mut new: Option<Vec<u8>> = None;
    let (mut from, mut at) = (0, 0);
    while at + placeholder.len() <= value.len() {
        if !value[at..].starts_with(placeholder) {
            at += 1;
            continue;
        }
        let secret = secret.value.reveal().as_bytes();
        *space = space.checked_sub(secret.len()).ok_or(TooLarge)?;
        let new = new.get_or_insert_default();
        new.extend_from_slice(&value[from..at]);
        new.extend_from_slice(secret);
        at += placeholder.len();
        from = at;
    }
    if let Some(new) = &mut new {
        new.extend_from_slice(&value[from..]);
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(placeholder: &str, value: &str) -> Secret {
        let value = SecretValue::new(value.to_owned());
        Secret { placeholder: placeholder.to_owned(), value, hosts: Vec::new() }
    }

    fn injected(name: &'static str, value: &str, secrets: &[Secret]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).expect("a value"));
        inject(&mut headers, secrets.iter()).expect("there is space");
        headers[name].to_str().expect("text").to_owned()
    }

    #[test]
    fn a_placeholder_in_a_header_becomes_the_value() {
        let secrets = [secret("PLACE-1", "hush"), secret("PLACE-2", "quiet")];
        for (name, value, expected) in [
            ("authorization", "Bearer PLACE-1", "Bearer hush"),
            ("x-keys", "PLACE-1,PLACE-2;PLACE-1", "hush,quiet;hush"),
            ("x-keys", "PLACE-", "PLACE-"),
            ("host", "PLACE-1", "PLACE-1"),
            // user:PLACE-1 and user:hush
            ("authorization", "basic dXNlcjpQTEFDRS0x", "Basic dXNlcjpodXNo"),
            ("authorization", "Basic !!!", "Basic !!!"),
        ] {
            assert_eq!(injected(name, value, &secrets), expected, "{name}: {value}");
        }
    }

    #[test]
    fn many_placeholders_do_not_become_an_endless_header() {
        let large = secret("P", &"x".repeat(16 * 1024));
        let mut headers = HeaderMap::new();
        headers.insert("x-keys", HeaderValue::from_str(&"P".repeat(1000)).expect("a value"));
        assert_eq!(inject(&mut headers, std::iter::once(&large)), Err(TooLarge));
    }
}
